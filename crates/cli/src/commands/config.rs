//! `aludel config`: every value, and where it comes from.

use serde_json::json;

use crate::config::Raw;
use crate::exit::Exit;
use crate::output::print_json;
use crate::paint;

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArguments {
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ConfigArguments, raw: &Raw) -> anyhow::Result<Exit> {
    let rows = raw.describe();
    if arguments.json {
        let values: Vec<_> = rows
            .iter()
            .map(|(path, value, origin)| json!({ "path": path, "value": value, "origin": origin }))
            .collect();
        print_json(&values.into());
    } else {
        let width = |column: fn(&(String, String, String)) -> &String| {
            rows.iter().map(|row| column(row).len()).max().unwrap_or(0)
        };
        let (paths, values) = (width(|row| &row.0), width(|row| &row.1));
        for (path, value, origin) in &rows {
            println!("{path:paths$}  {value:values$}  {}", paint::faint(origin));
        }
    }
    // What cannot be used is said after what there is.
    raw.resolve()?;
    Ok(Exit::Success)
}
