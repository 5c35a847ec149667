//! The programs that models write.

pub(crate) const PRINTS: &str = "print(6 * 7)";
pub(crate) const FAILS: &str = "1 / 0";
pub(crate) const NEVER_ENDS: &str = "while True: pass";
pub(crate) const PRINTS_AND_NEVER_ENDS: &str = "print('begun', flush=True)\nwhile True: pass";
pub(crate) const EXITS: &str = "import os\nos._exit(3)";
pub(crate) const DIES: &str = "import os\nos.kill(os.getpid(), 11)";
pub(crate) const HOARDS: &str = "hoard = bytearray(1 << 30)";
pub(crate) const MAKES_FILE: &str = "with open('out.csv', 'w') as f:\n    f.write('a,b\\n')\nprint('made')";
pub(crate) const SHOWS_IMAGE: &str =
    "from IPython.display import Image, display\ndisplay(Image(data=bytes.fromhex('89504e470d0a1a0a'), format='png'))";
pub(crate) const READS_FILE: &str = "print(open('data.csv').read())";
pub(crate) const STARTS_PROCESS: &str = "import subprocess\nprint(subprocess.run('true').returncode)";
