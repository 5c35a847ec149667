//! The demo's final message, made from the figures that its programs printed.

use serde_json::{Map, Value};

use super::SCRIPTED;

/// Files that the programs make, and what they are.
const FILES: [(&str, &str); 5] = [
    ("report.pdf", "the report"),
    ("report.xlsx", "all tables as a workbook"),
    ("monthly.png", "revenue by month"),
    ("pareto.png", "products, Pareto and ABC"),
    ("funnel.png", "the conversion funnel"),
];

/// Writes the message for a set of figures. Missing figures are left out.
pub(super) fn answer(figures: &Map<String, Value>) -> String {
    let number = |name: &str| figures.get(name).and_then(Value::as_f64);
    let mut lines = vec!["## Q1 2026 sales".to_owned(), String::new()];
    if let (Some(revenue), Some(orders), Some(conversion)) = (number("revenue"), number("orders"), number("conversion"))
    {
        let (revenue, orders) = (grouped(revenue), grouped(orders));
        lines.push(format!(
            "- Revenue **{revenue}** from {orders} orders; {:.1} % of the sessions end in a purchase.",
            conversion * 100.0
        ));
    }
    lines.extend(monthly(figures));
    lines.extend(products(figures));
    lines.extend(funnel(figures));
    lines.extend(quality(figures));
    lines.push(String::new());
    lines.push("Files:".to_owned());
    lines.extend(FILES.iter().map(|(name, what)| format!("- [{name}](sandbox:/mnt/data/{name}): {what}")));
    lines.push(String::new());
    lines.push(SCRIPTED.to_owned());
    lines.join("\n")
}

fn monthly(figures: &Map<String, Value>) -> Option<String> {
    let months = figures.get("monthly")?.as_array()?;
    let describe = |month: &Value| {
        let change = month["change"].as_f64().map(|change| format!(" ({:+.1} %)", change * 100.0)).unwrap_or_default();
        Some(format!("{} {}{change}", month["month"].as_str()?, grouped(month["revenue"].as_f64()?)))
    };
    let months: Vec<_> = months.iter().filter_map(describe).collect();
    Some(format!("- By month: {}.", months.join(", ")))
}

fn products(figures: &Map<String, Value>) -> Option<String> {
    let top = figures.get("top10")?.as_array()?;
    let names: Vec<_> = top.iter().take(3).filter_map(|product| product["product"].as_str()).collect();
    let share = figures.get("top10_share")?.as_f64()? * 100.0;
    let class_a = figures.get("abc")?["A"].as_u64()?;
    let all = figures.get("products")?.as_u64()?;
    Some(format!(
        "- The top 10 products bring {share:.0} % of the revenue, led by {}. {class_a} of {all} products are class A.",
        names.join(", ")
    ))
}

fn funnel(figures: &Map<String, Value>) -> Option<String> {
    let funnel = figures.get("funnel")?;
    let stages: Option<Vec<_>> = ["view", "cart", "checkout", "purchase"]
        .into_iter()
        .map(|stage| Some(format!("{stage} {}", grouped(funnel[stage].as_f64()?))))
        .collect();
    Some(format!("- Funnel, sessions: {}.", stages?.join(" → ")))
}

fn quality(figures: &Map<String, Value>) -> Option<String> {
    let quality = figures.get("quality")?;
    let count = |name: &str| quality[name].as_f64().map(grouped);
    Some(format!(
        "- Of {} rows, {} are used; {} duplicates were removed, and {} dates in another format converted.",
        count("rows read")?,
        count("rows used")?,
        count("duplicate rows removed")?,
        count("dates converted from DD.MM.YYYY")?,
    ))
}

/// A whole number with separators of thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0
            && (digits.len() - index) % 3 == 0
            && digits.as_bytes().get(index - 1).is_some_and(u8::is_ascii_digit)
        {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
