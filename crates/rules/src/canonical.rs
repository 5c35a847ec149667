//! Names of the same thing: modules hold other modules, as in `shutil.os.system` and `random._os.system`.

/// Modules whose functions are followed.
const FOLLOWED: [&str; 11] = [
    "builtins",
    "sys",
    "importlib",
    "operator",
    "functools",
    "base64",
    "binascii",
    "codecs",
    "inspect",
    "timeit",
    "cProfile",
];

/// Functions that keep their names wherever they are imported.
const EVERYWHERE: [(&str, &str); 3] =
    [("import_module", "importlib.import_module"), ("__import__", "builtins.__import__"), ("exec_", "builtins.exec")];

/// A dotted name as it is written by who imports the innermost module that is followed: `sys.modules` for `os.sys.modules`.
pub(crate) fn canonical(name: &str) -> &str {
    let last = name.rsplit('.').next().unwrap_or_default();
    if let Some((_, function)) = EVERYWHERE.iter().find(|(written, _)| *written == last) {
        return function;
    }
    let mut found = name;
    for tail in tails(name) {
        let first = tail.split('.').next().unwrap_or_default();
        // `timeit.timeit` is a function, and no module.
        if FOLLOWED.contains(&first) && found.split('.').next() != Some(tail) {
            found = tail;
        }
    }
    found
}

/// A name, and the same as it is called further inside, with and without the underscore that says that it is nobody's business.
pub(crate) fn tails(name: &str) -> impl Iterator<Item = &str> {
    let starts = std::iter::once(0).chain(name.match_indices('.').map(|(at, _)| at + 1));
    starts.filter_map(|at| name.get(at..)).flat_map(|tail| {
        let public = tail.trim_start_matches('_');
        std::iter::once(tail).chain((public.len() < tail.len()).then_some(public))
    })
}
