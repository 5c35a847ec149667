//! The demo's data: a web shop's events of one quarter, with the errors of real files. The same bytes every time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Data rows in the file.
pub(crate) const ROWS: usize = 45_000;
/// Duplicates among them.
const DUPLICATES: usize = 540;
const SEED: u64 = 0x2026_0001;

/// Days of the months of the quarter, and how busy each month is.
const MONTHS: [(u32, f64); 3] = [(31, 1.0), (28, 0.95), (31, 1.17)];
/// Monday to Sunday. The quarter began on a Thursday.
const WEEKDAYS: [f64; 7] = [0.95, 0.92, 0.96, 1.0, 1.12, 1.22, 1.08];
const FIRST_WEEKDAY: u32 = 3;

/// Probabilities that a session continues to cart, checkout and purchase.
const STAGES: [(&str, f64); 4] = [("view", 1.0), ("cart", 0.41), ("checkout", 0.63), ("purchase", 0.79)];

/// Products and prices, the most wanted first.
const PRODUCTS: [(&str, f64); 48] = [
    ("Trail Running Shoes", 129.0),
    ("Insulated Water Bottle", 34.5),
    ("Down Jacket", 249.0),
    ("Wireless Earbuds", 89.0),
    ("Merino Base Layer", 79.0),
    ("Hiking Backpack 45L", 189.0),
    ("Fitness Tracker", 149.0),
    ("Yoga Mat", 45.0),
    ("Road Bike Helmet", 99.0),
    ("Camping Tent 3P", 399.0),
    ("Sleeping Bag", 159.0),
    ("Headlamp", 49.0),
    ("Trekking Poles", 85.0),
    ("GPS Watch", 449.0),
    ("Rain Shell", 139.0),
    ("Climbing Harness", 75.0),
    ("Cycling Jersey", 69.0),
    ("Dry Bag 20L", 29.0),
    ("Camp Stove", 64.0),
    ("Resistance Bands", 24.0),
    ("Ski Goggles", 119.0),
    ("Thermal Gloves", 39.0),
    ("Snowshoes", 179.0),
    ("Carbon Road Bike", 2390.0),
    ("Kettlebell 16kg", 59.0),
    ("Foam Roller", 27.0),
    ("Bike Lock", 54.0),
    ("Travel Pillow", 19.5),
    ("Water Filter", 44.0),
    ("Wool Socks 3-Pack", 32.0),
    ("Bouldering Shoes", 115.0),
    ("Swim Goggles", 22.0),
    ("Paddle Board", 590.0),
    ("Hammock", 65.0),
    ("Cooler Box", 98.0),
    ("Folding Chair", 47.0),
    ("First Aid Kit", 36.0),
    ("Multi-Tool", 72.0),
    ("Bike Pump", 31.0),
    ("Sun Hat", 28.0),
    ("Compass", 21.0),
    ("Gaiters", 42.0),
    ("Ice Axe", 109.0),
    ("Avalanche Beacon", 329.0),
    ("Solar Charger", 88.0),
    ("Fishing Rod", 77.0),
    ("Jump Rope", 15.0),
    ("Balance Board", 69.5),
];

/// Writes the file.
pub(crate) fn write(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "date,session_id,product,stage,amount")?;
    for row in rows() {
        writeln!(file, "{row}")?;
    }
    file.flush()
}

fn rows() -> Vec<String> {
    let mut random = Random(SEED);
    let mut sessions = Vec::new();
    let mut left = ROWS - DUPLICATES;
    while left > 0 {
        let day = random.day();
        let (product, price) = PRODUCTS[random.product()];
        let quantity = if price < 100.0 && random.chance(0.18) { 2.0 } else { 1.0 };
        let discount = if random.chance(0.15) { 0.9 } else { 1.0 };
        let reached = STAGES.iter().take_while(|(_, likelihood)| random.chance(*likelihood)).count().min(left);
        left -= reached;
        sessions.push((day, product, price * quantity * discount, reached));
    }
    // Stable, so that the same seed gives the same order within a day.
    sessions.sort_by_key(|(day, ..)| *day);
    let mut rows: Vec<String> = Vec::with_capacity(ROWS);
    let mut session = 100_000;
    for ((month, day), product, amount, reached) in sessions {
        session += 1 + random.below(3);
        for (stage, _) in STAGES.iter().take(reached) {
            rows.push(random.row(month, day, session, product, stage, amount));
        }
    }
    // Sent twice, as by a retry: the copy comes somewhat later.
    for _ in 0..DUPLICATES {
        let original = random.below(rows.len() as u64) as usize;
        let place = (original + 1 + random.below(40) as usize).min(rows.len());
        rows.insert(place, rows[original].clone());
    }
    rows
}

/// SplitMix64: small, well spread, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn chance(&mut self, likelihood: f64) -> bool {
        self.unit() < likelihood
    }

    /// Month and day, busier days more often.
    fn day(&mut self) -> (u32, u32) {
        loop {
            let mut day = self.below(90) as u32;
            let weekday = WEEKDAYS[((day + FIRST_WEEKDAY) % 7) as usize];
            for (month, (days, weight)) in (1..).zip(MONTHS) {
                if day < days {
                    if self.unit() * 1.5 < weekday * weight {
                        return (month, day + 1);
                    }
                    break;
                }
                day -= days;
            }
        }
    }

    /// The first products far more often than the last.
    fn product(&mut self) -> usize {
        let place = PRODUCTS.len() as f64 * self.unit().powf(2.3);
        (place as usize).min(PRODUCTS.len() - 1)
    }

    fn row(&mut self, month: u32, day: u32, session: u64, product: &str, stage: &str, amount: f64) -> String {
        let date = if self.chance(0.012) {
            String::new()
        } else if self.chance(0.14) {
            format!("{day:02}.{month:02}.2026")
        } else {
            format!("2026-{month:02}-{day:02}")
        };
        let product = match self.below(100) {
            0 => String::new(),
            1..=3 => format!("  {product}"),
            4..=5 => format!("{product} "),
            6..=7 => product.to_uppercase(),
            8..=9 => product.to_lowercase(),
            _ => product.to_owned(),
        };
        let stage = if self.chance(0.02) { stage.to_uppercase() } else { stage.to_owned() };
        let amount = match self.below(100) {
            0 => String::new(),
            1 => "n/a".to_owned(),
            // Quoted, because the thousands separator is also the column separator.
            _ if amount >= 1000.0 => format!("\"{},{:06.2}\"", (amount / 1000.0) as u32, amount % 1000.0),
            _ => format!("{amount:.2}"),
        };
        format!("{date},S{session},{product},{stage},{amount}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_rows_every_time_with_all_the_dirt() {
        let rows = rows();
        assert_eq!(rows.len(), ROWS);
        assert_eq!(rows, super::rows());
        let has = |test: &dyn Fn(&str) -> bool| rows.iter().filter(|row| test(row)).count();
        assert!(has(&|row| row.starts_with("2026-")) > 30_000);
        assert!((4_000..8_000).contains(&has(&|row| row.contains(".2026,"))));
        assert!(has(&|row| row.starts_with(',')) > 100, "missing dates");
        assert!(has(&|row| row.contains(",  ")) > 100, "stray spaces");
        assert!(has(&|row| row.ends_with("n/a")) > 100);
        assert!(has(&|row| row.contains(",390.00\"") || row.contains(",151.00\"")) > 10, "thousands");
        let stage = |name: &str| rows.iter().filter(|row| row.to_lowercase().contains(name)).count();
        assert!(
            stage(",view,") > stage(",cart,")
                && stage(",cart,") > stage(",checkout,")
                && stage(",checkout,") > stage(",purchase,")
        );
    }

    #[test]
    fn rows_have_five_columns() {
        for row in rows() {
            let outside_quotes = row.split('"').step_by(2).collect::<String>();
            assert_eq!(outside_quotes.matches(',').count(), 4, "{row}");
        }
    }
}
