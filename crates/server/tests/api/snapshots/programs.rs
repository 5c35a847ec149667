//! The programs that models write, and their scripts for kernels that are no Python: both do the same.

use aludel_sandbox::memory::{ScriptedCell, simple};
use aludel_sandbox::{MimeBundle, MimeData, ProgramError};

pub(super) const PRINTS: &str = "print(6 * 7)";
pub(super) const FAILS: &str = "1 / 0";
pub(super) const NEVER_ENDS: &str = "while True: pass";
pub(super) const PRINTS_AND_NEVER_ENDS: &str = "print('begun', flush=True)\nwhile True: pass";
pub(super) const EXITS: &str = "import os\nos._exit(3)";
pub(super) const DIES: &str = "import os\nos.kill(os.getpid(), 11)";
pub(super) const HOARDS: &str = "hoard = bytearray(1 << 30)";
pub(super) const MAKES_FILE: &str = "with open('out.csv', 'w') as f:\n    f.write('a,b\\n')\nprint('made')";
pub(super) const SHOWS_IMAGE: &str =
    "from IPython.display import Image, display\ndisplay(Image(data=bytes.fromhex('89504e470d0a1a0a'), format='png'))";
pub(super) const READS_FILE: &str = "print(open('data.csv').read())";
pub(super) const STARTS_PROCESS: &str = "import subprocess\nprint(subprocess.run('true').returncode)";

/// Plays the programs of the cases on the memory backend.
pub(super) fn script(code: &str, cell: &mut ScriptedCell) {
    match code {
        PRINTS => cell.print("42\n"),
        FAILS => cell.fail_with(error("ZeroDivisionError", "division by zero", "1 / 0\n    ~~^~~")),
        PRINTS_AND_NEVER_ENDS => cell.print("begun\n").never_end(),
        EXITS => cell.exit(3),
        DIES => cell.die_of(11),
        MAKES_FILE => cell.write("out.csv", "a,b\n").print("made\n"),
        SHOWS_IMAGE => cell.display(MimeBundle(vec![
            ("text/plain".to_owned(), MimeData::Text("<IPython.core.display.Image object>".to_owned())),
            ("image/png".to_owned(), MimeData::Binary(b"\x89PNG\r\n\x1a\n".to_vec())),
        ])),
        STARTS_PROCESS => cell.print("0\n"),
        "x = 6 * 7" | "x = 6 * 7\nx" => {
            cell.variables.insert("x".to_owned(), "42".to_owned());
            if code.ends_with('x') { cell.result("42") } else { cell }
        }
        "print(x + 1)" => cell.print("2\n"),
        // The calls of a shell and an editor.
        _ if code.contains("\n_bash(") => cell.print("42\n").result("3"),
        _ if code.starts_with("def _create(") => {
            cell.write("a.txt", "one\n").print("The file was made.\n").result("[0]")
        }
        _ if code.starts_with("def _view(") => cell.print("one\n").result("[1, 1, 1]"),
        _ => {
            simple(code, cell);
            cell
        }
    };
}

/// An error on the first line of the first cell.
fn error(name: &str, value: &str, line: &str) -> ProgramError {
    let traceback =
        format!("Traceback (most recent call last):\n  Cell 1, line 1, in <module>\n    {line}\n{name}: {value}");
    ProgramError { name: name.to_owned(), value: value.to_owned(), traceback }
}
