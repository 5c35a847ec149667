//! Depth of a program, measured before anything is called once per level.

use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{Mode, lexer};

/// Levels that are read. CPython itself gives up at 200 brackets and soon after 1,000 of other things, of two tokens each.
const MAX_LEVELS: usize = 2000;

/// Returns true if a program's syntax tree may be too deep to be read. Counts tokens that can nest, without any recursion.
pub(crate) fn is_too_deep(code: &str) -> bool {
    let mut lexer = lexer::lex(code, Mode::Ipython);
    // Tokens in each pair of brackets that is open, since the last comma: each may hold what was before it, or what follows.
    let mut open = vec![0_usize];
    // All of them, and lambdas, whose parameters have commas, too.
    let (mut levels, mut indents) = (0_usize, 0_usize);
    while levels + indents <= MAX_LEVELS {
        let last = open.len() - 1;
        match lexer.next_token() {
            TokenKind::EndOfFile => return false,
            TokenKind::Newline | TokenKind::Semi => (open, levels) = (vec![0], 0),
            TokenKind::Indent => indents += 1,
            TokenKind::Dedent => indents = indents.saturating_sub(1),
            TokenKind::Comma => levels -= std::mem::take(&mut open[last]),
            TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace if last > 0 => {
                levels -= open.pop().unwrap_or_default();
            }
            TokenKind::Lambda => levels += 1,
            TokenKind::String | TokenKind::FStringMiddle | TokenKind::TStringMiddle => {}
            TokenKind::Comment | TokenKind::NonLogicalNewline => {}
            token => {
                (open[last], levels) = (open[last] + 1, levels + 1);
                if matches!(token, TokenKind::Lpar | TokenKind::Lsqb | TokenKind::Lbrace) {
                    open.push(0);
                }
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_not_deep() {
        for code in [
            format!("x = [{}]", "(1, -2.5, 'a'), ".repeat(5000)),
            "x = f(1) + 2\n".repeat(5000),
            format!("d = {{{}}}", "'a': lambda x: x + 1,\n".repeat(500)),
            format!("t = ({})", "'line'\n".repeat(5000)),
            format!("f'''{}'''", "{x:>10} ".repeat(400)),
            "if x:\n    y = (1)\n".repeat(3000),
        ] {
            assert!(!is_too_deep(&code), "{}", &code[..40]);
        }
    }

    #[test]
    fn what_is_deep_is_found() {
        let times = 20_000;
        for one in [
            "(",
            "[",
            "{1:",
            "-",
            "not ",
            "1+",
            "x.",
            "x if x else ",
            "lambda: ",
            "lambda a, b: ",
            "f'{",
            "await ",
            "2**",
        ] {
            assert!(is_too_deep(&one.repeat(times)), "{one}");
        }
        for one in ["()", "[0]", ".a", ".a()", "+1", " or 1", "(1,2)"] {
            assert!(is_too_deep(&format!("x{}", one.repeat(times))), "{one}");
        }
        let indented: String = (0..2000).map(|level| " ".repeat(level) + "if 1:\n").collect();
        assert!(is_too_deep(&indented));
    }
}
