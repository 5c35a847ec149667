df = raw.copy()
quality = {"rows read": len(df)}

# Stray spaces and case first: they hide duplicates and split products.
for column in df.columns:
    df[column] = df[column].str.strip()
spelling = df["product"].dropna().str.lower()
usual = df["product"].dropna().groupby(spelling).agg(lambda names: names.value_counts().idxmax())
fixed = df["product"].str.lower().map(usual)
quality["product names repaired"] = int((raw["product"] != fixed)[raw["product"].notna()].sum())
df["product"] = fixed
df["stage"] = df["stage"].str.lower()

# Two date formats: ISO, and day.month.year.
dotted = df["date"].str.fullmatch(r"\d{2}\.\d{2}\.\d{4}", na=False)
iso = pd.to_datetime(df["date"].where(~dotted), format="%Y-%m-%d", errors="coerce")
df["date"] = iso.fillna(pd.to_datetime(df["date"].where(dotted), format="%d.%m.%Y", errors="coerce"))
quality["dates converted from DD.MM.YYYY"] = int(dotted.sum())

# Amounts: thousands separators, and "n/a" for missing.
df["amount"] = pd.to_numeric(df["amount"].str.replace(",", ""), errors="coerce")

before = len(df)
df = df.drop_duplicates()
quality["duplicate rows removed"] = before - len(df)
before = len(df)
df = df.dropna(subset=["date", "session_id", "product", "stage"])
quality["rows without date, session, product or stage removed"] = before - len(df)
quality["purchases without an amount (kept, not in revenue)"] = int(((df["stage"] == "purchase") & df["amount"].isna()).sum())
quality["rows used"] = len(df)

sales = df[df["stage"] == "purchase"].copy()
for name, count in quality.items():
    print(f"{count:>9,}  {name}")
print("FIGURES", json.dumps({"quality": quality}))
