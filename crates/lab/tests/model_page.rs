//! docs/model.md has the published figures, and the figures and rates of the model as the code
//! computes them.
//!
//! After a change of the model or of `paths.txt`:
//! `UPDATE_DOCS=1 cargo test -p quietline-lab --test model_page`.

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, fs, path::Path};

    use quietline_lab::coherence::{
        curves::{CPUS, curves},
        published::figures,
    };

    const FIGURES: &str = "| figure | published | model | error |\n|---|---|---|---|\n";
    const RATES: &str = "| subject | 2 CPUs | 16 CPUs | 32 CPUs | 56 CPUs | 112 CPUs |\n|---|---:|---:|---:|---:|---:|\n";
    /// The columns of the second table.
    const COLUMNS: [u32; 5] = [2, 16, 32, 56, 112];

    fn figures_table() -> String {
        let mut table = FIGURES.to_owned();
        for figure in figures() {
            let [published, model, error] = figure.cells();
            writeln!(table, "| {} | {published} | {model} | {error} |", figure.what).unwrap();
        }
        table
    }

    fn rates_table() -> String {
        let mut table = RATES.to_owned();
        for curve in curves(None) {
            write!(table, "| `{}` |", curve.name).unwrap();
            for column in COLUMNS {
                let place = CPUS.iter().position(|&cpus| cpus == column).expect("a point");
                write!(table, " {:.2} |", curve.values[place]).unwrap();
            }
            table.push('\n');
        }
        table
    }

    /// The page with the table that begins with `head` replaced.
    fn with(page: &str, head: &str, table: &str) -> String {
        let begin = page.find(head).expect("the head of the table");
        let end = begin + page[begin..].find("\n\n").expect("text after the table") + 1;
        format!("{}{table}{}", &page[..begin], &page[end..])
    }

    #[test]
    fn the_page_has_the_figures_of_the_model() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model.md");
        let page = fs::read_to_string(&path).expect("the page is there");
        let (figures, rates) = (figures_table(), rates_table());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let page = with(&with(&page, FIGURES, &figures), RATES, &rates);
            return fs::write(&path, page).expect("docs are writable");
        }
        let stale = "stale: UPDATE_DOCS=1 cargo test -p quietline-lab --test model_page";
        assert!(page.contains(&figures), "{stale}\n{figures}");
        assert!(page.contains(&rates), "{stale}\n{rates}");
    }
}
