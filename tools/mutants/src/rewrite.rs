//! Finds the mutants of a source file, and writes the file with all of them: each is turned on by its number.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, ReturnType, Stmt, Type, UnOp};

/// A small mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// The function that contains it.
    pub(crate) function: String,
    /// Line of the file, from 1.
    pub(crate) line: usize,
    /// The change, such as `` `a < b` -> `a <= b` ``, in one line.
    pub(crate) what: String,
    /// Where it is written.
    change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// The expression in these bytes has this text instead.
    Replace { start: usize, end: usize, text: String },
    /// The condition in these bytes has the opposite result.
    Negate { start: usize, end: usize },
    /// The condition that ends here never holds. `start`: where it begins, if brackets are allowed around it.
    Never { start: Option<usize>, end: usize },
    /// The statement in these bytes is left out.
    Skip { start: usize, end: usize },
    /// The function whose body begins here returns this.
    Return { at: usize, text: &'static str },
}

/// A file with mutants, and where each of them stands in it.
pub(crate) struct Rewritten {
    pub(crate) text: String,
    /// For each written mutant: its number, the bytes of its own text, and those of that and the original.
    pub(crate) places: Vec<(usize, std::ops::Range<usize>, std::ops::Range<usize>)>,
}

/// Returns the mutants of a source file.
pub(crate) fn find(source: &str) -> syn::Result<Vec<Mutant>> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder { source, function: String::new(), mutants: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.mutants)
}

/// Writes `source` with those of `mutants` that have numbers.
pub(crate) fn rewrite(source: &str, mutants: &[(usize, &Mutant)]) -> Rewritten {
    let mut edits = Vec::new();
    for (order, &(number, mutant)) in mutants.iter().enumerate() {
        let on = format!("crate::mutant::on({number})");
        let mut edit = |start, end, before: String, own: usize, after: String| {
            edits.push(Edit { number, order, start, end, before, own, after });
        };
        match &mutant.change {
            Change::Replace { start, end, text } => {
                let head = format!("(if {on} {{ ");
                let own = head.len();
                edit(*start, *end, format!("{head}{text} }} else {{ "), own, " })".into());
            }
            Change::Negate { start, end } => edit(*start, *end, format!("({on} != ("), 0, "))".into()),
            Change::Never { start: Some(start), end } => {
                edit(*start, *end, "((".into(), 0, format!(") && !{on})"));
            }
            Change::Never { start: None, end } => edit(*end, *end, String::new(), 0, format!(" && !{on}")),
            Change::Skip { start, end } => edit(*start, *end, format!("if !{on} {{ "), 0, " }".into()),
            Change::Return { at, text } => {
                edit(*at, *at, format!(" if {on} {{ return {text}; }}"), 0, String::new());
            }
        }
    }
    // The outer of two edits comes first; of edits of the same bytes, the one found first is the outer one.
    edits.sort_by_key(|e| (e.start, std::cmp::Reverse(e.end), e.order));
    let mut out = Writer { source, text: String::new(), at: 0, open: Vec::new(), places: Vec::new() };
    for edit in &edits {
        out.close_until(edit.start);
        out.copy_to(edit.start);
        let begin = out.text.len();
        out.text.push_str(&edit.before);
        out.open.push((edit, begin, begin + edit.own..out.text.len()));
    }
    out.close_until(usize::MAX);
    out.copy_to(source.len());
    Rewritten { text: out.text, places: out.places }
}

struct Edit {
    number: usize,
    order: usize,
    start: usize,
    end: usize,
    before: String,
    /// Where the mutated text begins in `before`.
    own: usize,
    after: String,
}

struct Writer<'a, 'e> {
    source: &'a str,
    text: String,
    at: usize,
    open: Vec<(&'e Edit, usize, std::ops::Range<usize>)>,
    places: Vec<(usize, std::ops::Range<usize>, std::ops::Range<usize>)>,
}

impl Writer<'_, '_> {
    fn copy_to(&mut self, to: usize) {
        self.text.push_str(&self.source[self.at..to]);
        self.at = to;
    }

    /// Ends the edits that end before or at `start`; an edit of no bytes ends at once.
    fn close_until(&mut self, start: usize) {
        while let Some((edit, begin, own)) = self.open.pop_if(|(edit, ..)| edit.end <= start) {
            self.copy_to(edit.end);
            self.text.push_str(&edit.after);
            self.places.push((edit.number, own, begin..self.text.len()));
        }
    }
}

struct Finder<'a> {
    source: &'a str,
    function: String,
    mutants: Vec<Mutant>,
}

/// Methods that stand in for each other, with the same types.
const METHODS: &[[&str; 2]] = &[
    ["min", "max"],
    ["checked_add", "checked_sub"],
    ["saturating_add", "saturating_sub"],
    ["wrapping_add", "wrapping_sub"],
    ["is_some", "is_none"],
    ["is_ok", "is_err"],
    ["is_some_and", "is_none_or"],
    ["any", "all"],
    ["first", "last"],
    ["count_ones", "count_zeros"],
    ["trailing_zeros", "leading_zeros"],
    ["div_ceil", "wrapping_div"],
];

impl<'a> Finder<'a> {
    fn text(&self, span: Span) -> &'a str {
        &self.source[span.byte_range()]
    }

    fn add(&mut self, span: Span, what: String, change: Change) {
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        self.mutants.push(Mutant { function: self.function.clone(), line: span.start().line, what, change });
    }

    fn replace(&mut self, span: Span, text: String) {
        let what = format!("`{}` -> `{text}`", self.text(span));
        let std::ops::Range { start, end } = span.byte_range();
        self.add(span, what, Change::Replace { start, end, text });
    }

    /// Returns the line that `span` begins in.
    fn line(&self, span: Span) -> &'a str {
        self.source.lines().nth(span.start().line - 1).unwrap_or_default().trim()
    }

    fn literal(&mut self, literal: &syn::LitInt) {
        let Ok(value) = literal.base10_parse::<u128>() else { return };
        let other = if value == 1 { 0 } else { value + 1 };
        let text = format!("{other}{}", literal.suffix());
        let span = literal.span();
        let what = format!("{} -> {text} in `{}`", self.text(span), self.line(span));
        let std::ops::Range { start, end } = span.byte_range();
        self.add(span, what, Change::Replace { start, end, text });
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        let others: &[&str] = match binary.op {
            BinOp::Lt(_) => &["<=", ">="],
            BinOp::Le(_) => &["<", ">"],
            BinOp::Gt(_) => &[">=", "<="],
            BinOp::Ge(_) => &[">", "<"],
            BinOp::Eq(_) => &["!="],
            BinOp::Ne(_) => &["=="],
            BinOp::Add(_) => &["-"],
            BinOp::Sub(_) => &["+"],
            BinOp::Mul(_) => &["+"],
            BinOp::Div(_) => &["*"],
            BinOp::Rem(_) => &["/"],
            BinOp::Shl(_) => &[">>"],
            BinOp::Shr(_) => &["<<"],
            BinOp::BitAnd(_) => &["|"],
            BinOp::BitOr(_) => &["&"],
            BinOp::BitXor(_) => &["|"],
            BinOp::And(_) if !has_let(&binary.left) && !has_let(&binary.right) => &["||"],
            BinOp::Or(_) => &["&&"],
            BinOp::AddAssign(_) => &["-="],
            BinOp::SubAssign(_) => &["+="],
            BinOp::BitOrAssign(_) => &["&="],
            BinOp::BitAndAssign(_) => &["|="],
            BinOp::ShrAssign(_) => &["<<="],
            BinOp::ShlAssign(_) => &[">>="],
            _ => &[],
        };
        let span = binary.span();
        let (left, right) = (self.text(binary.left.span()), self.text(binary.right.span()));
        let assigns = others.iter().any(|op| op.ends_with('=') && op.len() > 1 && !"<>=!".contains(&op[..1]))
            || matches!(binary.op, BinOp::ShrAssign(_) | BinOp::ShlAssign(_));
        for op in others {
            let text =
                if assigns { format!("{left} {op} {right}") } else { format!("({left}) {op} ({right})") };
            let what = format!("`{}` -> `{left} {op} {right}`", self.text(span));
            let std::ops::Range { start, end } = span.byte_range();
            self.add(span, what, Change::Replace { start, end, text });
        }
    }

    fn condition(&mut self, condition: &Expr) {
        let compared = matches!(condition, Expr::Binary(_) | Expr::Unary(_) | Expr::Lit(_));
        if !compared && !has_let(condition) {
            let span = condition.span();
            let std::ops::Range { start, end } = span.byte_range();
            self.add(span, format!("`{0}` -> `!({0})`", self.text(span)), Change::Negate { start, end });
        }
    }

    /// A function that returns at once, where its type has a plain value.
    fn returns(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let values: &[&str] = match &signature.output {
            ReturnType::Default => &["()"],
            ReturnType::Type(_, ty) => match ty.as_ref() {
                Type::Path(path) => {
                    let last = path.path.segments.last().map(|s| self.text(s.span())).unwrap_or_default();
                    match last {
                        "bool" => &["true", "false"],
                        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i16" | "i32" | "i64" => {
                            &["0", "1"]
                        }
                        "Result<()>" => &["Ok(())"],
                        _ if last.starts_with("Option<") => &["None"],
                        _ => &[],
                    }
                }
                _ => &[],
            },
        };
        let at = block.brace_token.span.open().byte_range().end;
        for text in values {
            let what = format!("returns `{text}` at once");
            self.add(signature.ident.span(), what, Change::Return { at, text });
        }
    }

    /// Visits a function's signature and body, with its name set.
    fn function(&mut self, signature: &syn::Signature, attrs: &[syn::Attribute], block: &syn::Block) {
        if signature.constness.is_some() || signature.unsafety.is_some() || is_for_tests(attrs) {
            return;
        }
        let outer = std::mem::replace(&mut self.function, signature.ident.to_string());
        self.returns(signature, block);
        self.visit_block(block);
        self.function = outer;
    }
}

/// Whether a condition contains `let` outside of closures and blocks.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| {
        a.path().is_ident("test")
            || a.path().is_ident("cfg")
                && a.meta.require_list().is_ok_and(|l| {
                    let text = l.tokens.to_string();
                    ["test", "fuzzing"].contains(&text.as_str()) || text.contains("target_arch")
                })
    })
}

/// Whether a call only reserves memory: how much changes nothing but time.
fn only_reserves(expr: &Expr) -> bool {
    const NAMES: &[&str] = &["reserve", "prefer_large", "with_room", "with_capacity"];
    match expr {
        Expr::MethodCall(call) => NAMES.iter().any(|name| call.method == name),
        Expr::Call(call) => matches!(&*call.func, Expr::Path(path)
            if path.path.segments.last().is_some_and(|s| NAMES.iter().any(|name| s.ident == name))),
        _ => false,
    }
}

/// Whether an `if` leaves its function or loop at once.
fn leaves(block: &syn::Block) -> bool {
    matches!(block.stmts.as_slice(), [Stmt::Expr(Expr::Return(_) | Expr::Continue(_) | Expr::Break(_), _)])
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Fn(f) => self.function(&f.sig, &f.attrs, &f.block),
            syn::Item::Mod(m) if !is_for_tests(&m.attrs) => visit::visit_item_mod(self, m),
            syn::Item::Impl(i) if !is_for_tests(&i.attrs) => {
                let name = i.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
                if name.is_none_or(|s| s.ident != "Display" && s.ident != "Debug") {
                    visit::visit_item_impl(self, i);
                }
            }
            syn::Item::Trait(t) => visit::visit_item_trait(self, t),
            // Constants, types and macros are not run.
            _ => {}
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if let syn::ImplItem::Fn(f) = item {
            self.function(&f.sig, &f.attrs, &f.block);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        if let syn::TraitItem::Fn(f) = item
            && let Some(block) = &f.default
        {
            self.function(&f.sig, &f.attrs, block);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(semicolon)) = stmt
            && !only_reserves(expr)
            && matches!(expr, Expr::Try(_) | Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_))
        {
            let (start, end) = (expr.span().byte_range().start, semicolon.span.byte_range().end);
            let what = format!("`{}` left out", &self.source[start..end]);
            self.add(expr.span(), what, Change::Skip { start, end });
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Binary(binary) => self.binary(binary),
            Expr::Lit(syn::ExprLit { lit: Lit::Int(literal), .. }) => self.literal(literal),
            Expr::Unary(syn::ExprUnary { op: UnOp::Not(_) | UnOp::Neg(_), expr: inner, .. })
                if !matches!(**inner, Expr::Lit(_)) =>
            {
                self.replace(expr.span(), self.text(inner.span()).to_owned());
            }
            Expr::If(expr) if is_for_tests(&expr.attrs) => return,
            Expr::If(expr) => {
                self.condition(&expr.cond);
                if expr.else_branch.is_none() && leaves(&expr.then_branch) {
                    let span = expr.cond.span();
                    let std::ops::Range { start, end } = span.byte_range();
                    let start = Some(start).filter(|_| !has_let(&expr.cond));
                    let what = format!("`if {}` never holds", self.text(span));
                    self.add(span, what, Change::Never { start, end });
                }
            }
            Expr::While(expr) => self.condition(&expr.cond),
            expr if only_reserves(expr) => return,
            // A fallback is a value of its type that is not reached, or one that callers test.
            Expr::MethodCall(call) if call.method == "unwrap_or" || call.method == "map_or" => {
                self.visit_expr(&call.receiver);
                return call.args.iter().skip(1).for_each(|arg| self.visit_expr(arg));
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                let pair = METHODS.iter().find(|pair| pair.contains(&name.as_str()));
                if let Some(other) = pair.and_then(|pair| pair.iter().find(|other| **other != name)) {
                    let (span, name) = (call.span().byte_range(), call.method.span().byte_range());
                    let before = &self.source[span.start..name.start];
                    let text = format!("{before}{other}{}", &self.source[name.end..span.end]);
                    self.replace(call.span(), text);
                }
            }
            // The number of elements is a constant, and so are most first contents, which are overwritten.
            Expr::Repeat(repeat) if matches!(*repeat.expr, Expr::Lit(_)) => return,
            Expr::Repeat(repeat) => return self.visit_expr(&repeat.expr),
            Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard);
        }
        visit::visit_arm(self, arm);
    }

    // Patterns, types and generic arguments are constants.
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the source with one mutant of each kind of change, as a compiler would see it.
    fn with_all(source: &str) -> (Vec<String>, String) {
        let mutants = find(source).unwrap();
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let rewritten = rewrite(source, &numbered);
        assert_eq!(rewritten.places.len(), mutants.len());
        syn::parse_file(&rewritten.text).unwrap_or_else(|e| panic!("{e}: {}", rewritten.text));
        (mutants.iter().map(|m| m.what.clone()).collect(), rewritten.text)
    }

    #[test]
    fn a_comparison_and_a_sum() {
        let (whats, text) = with_all("fn f(a: u8) -> [u8; 2] { [a + 2, 0] }");
        assert_eq!(
            whats,
            [
                "`a + 2` -> `a - 2`",
                "2 -> 3 in `fn f(a: u8) -> [u8; 2] { [a + 2, 0] }`",
                "0 -> 1 in `fn f(a: u8) -> [u8; 2] { [a + 2, 0] }`"
            ]
        );
        assert_eq!(
            text,
            "fn f(a: u8) -> [u8; 2] { [(if crate::mutant::on(0) { (a) - (2) } else { a + \
             (if crate::mutant::on(1) { 3 } else { 2 }) }), (if crate::mutant::on(2) { 1 } else { 0 })] }"
        );
    }

    #[test]
    fn statements_conditions_and_guards() {
        let source = "fn f(v: &mut Vec<u8>) -> Result<()> {
            if v.is_empty() { return Err(e()); }
            if let Some(x) = g() && x < 3 { return Ok(()); }
            check(v)?;
            v.push(!h());
            Ok(())
        }";
        let (whats, text) = with_all(source);
        for what in [
            "returns `Ok(())` at once",
            "`v.is_empty()` -> `!(v.is_empty())`",
            "`if v.is_empty()` never holds",
            "`if let Some(x) = g() && x < 3` never holds",
            "`x < 3` -> `x <= 3`",
            "`check(v)?;` left out",
            "`!h()` -> `h()`",
        ] {
            assert!(whats.iter().any(|w| w == what), "{what}: {whats:#?}");
        }
        assert!(text.contains("if !crate::mutant::on("), "{text}");
    }

    #[test]
    fn constants_patterns_types_and_tests_are_left_alone() {
        let source = "const A: u8 = 1 + 2;
            const fn c() -> u8 { 3 }
            impl Display for A { fn fmt(&self) { 1; } }
            fn f(a: [u8; 4]) { match a { [1, ..] => {} _ => {} } }
            #[cfg(test)] mod tests { fn g() -> u8 { 7 } }";
        assert_eq!(with_all(source).0, ["returns `()` at once"]);
    }

    #[test]
    fn memory_first_contents_and_fallbacks_are_left_alone() {
        let source = "fn f(v: &mut Vec<u8>) -> Vec<u8> {
            v.reserve(1);
            let a = [0; 8];
            #[cfg(fuzzing)]
            if a == b { return c; }
            Vec::with_capacity(v.get(2).copied().unwrap_or(0) + 3)
        }";
        assert_eq!(with_all(source).0, [""; 0]);
    }

    #[test]
    fn a_closure_inside_an_argument() {
        let (_, text) =
            with_all("fn f(v: &[u64]) -> u64 { v.iter().map(|x| x >> 1 | 1).min().max(Some(2)) }");
        assert!(text.contains(".max().max(") || text.contains(".min().min("), "{text}");
    }
}
