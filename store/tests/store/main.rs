//! Tests of the store: what readers see while publishers, folds and collections run, fail and are killed.

mod basics;
mod conditions;
mod crash;
mod damage;
mod faults;
mod faulty;
mod races;
mod scratch;
mod servers;
mod tables;
mod weights;
