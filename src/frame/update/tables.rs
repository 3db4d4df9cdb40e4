//! Selection of the frequency tables that the blocks of an update share: a writer's choice.

use std::collections::BTreeMap;

use crate::codes::{Counts, Role, Table};

/// Returns the tables that save more than they cost: for each role, the table of the total counts of all
/// segments, if the segments that would use it save enough.
pub(super) fn shared_tables(segments: &[(Role, Counts)]) -> Vec<Table> {
    let mut by_role: BTreeMap<Role, Vec<&Counts>> = BTreeMap::new();
    for (role, counts) in segments {
        by_role.entry(*role).or_default().push(counts);
    }
    by_role
        .values()
        .filter(|segments| segments.len() > 1)
        .filter_map(|segments| worth_sharing(segments))
        .collect()
}

fn worth_sharing(segments: &[&Counts]) -> Option<Table> {
    let own: Vec<u64> = segments.iter().map(|counts| own_cost(counts)).collect();
    let mut table = sum_table(segments.iter().copied())?;
    // A second table, only from the segments that use the first, so that unlike segments do not blur it.
    let takers =
        segments.iter().zip(&own).filter(|(counts, own)| table.cost(counts).is_some_and(|c| c < **own));
    table = sum_table(takers.map(|(counts, _)| *counts))?;
    let saved: u64 = segments
        .iter()
        .zip(&own)
        .filter_map(|(counts, own)| Some(own.saturating_sub(table.cost(counts)?)))
        .sum();
    (saved > table.bits() << 16).then_some(table)
}

fn own_cost(counts: &Counts) -> u64 {
    let table = Table::from_counts(counts);
    table.and_then(|t| Some(t.cost(counts)?.saturating_add(t.bits() << 16))).unwrap_or(0)
}

fn sum_table<'a>(segments: impl Iterator<Item = &'a Counts>) -> Option<Table> {
    let mut sum = [0; 256];
    segments.for_each(|counts| sum.iter_mut().zip(counts).for_each(|(s, c)| *s += c));
    Table::from_counts(&sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few symbols, some of them likelier, from `first` on.
    fn counts(first: usize) -> Counts {
        let mut counts = [0; 256];
        counts[first..first + 16].iter_mut().zip(1..).for_each(|(count, n)| *count = n);
        counts
    }

    #[test]
    fn segments_of_one_role_that_are_alike_share_a_table() {
        let alike = |role| vec![(role, counts(0)); 20];
        let tables = shared_tables(&alike(Role::Codes));
        assert_eq!(tables, [Table::from_counts(&counts(0)).unwrap()]);
        assert_eq!(shared_tables(&[alike(Role::Codes), alike(Role::Levels)].concat()).len(), 2);
        assert!(shared_tables(&alike(Role::Codes)[..1]).is_empty());
        let unlike = [(Role::Codes, counts(0)), (Role::Codes, counts(200)), (Role::Levels, counts(0))];
        assert!(shared_tables(&unlike).is_empty());
        assert!(shared_tables(&[]).is_empty());
    }
}
