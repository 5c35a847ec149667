import json
import pandas as pd

raw = pd.read_csv("{{CSV}}", dtype=str)
print(f"{len(raw):,} rows, {raw.shape[1]} columns: {', '.join(raw.columns)}")
print()
print(raw.head(8).to_string())
print()
print(pd.DataFrame({"missing": raw.isna().sum(), "distinct": raw.nunique()}).to_string())
print("FIGURES", json.dumps({"rows": len(raw), "columns": list(raw.columns)}))
