//! docs/model.md has the published figures and the model's as the code computes them.
//!
//! After a change of the model: `UPDATE_DOCS=1 cargo test -p quietline-lab --test model_page`.

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, fs, path::Path};

    use quietline_lab::coherence::published::figures;

    const HEAD: &str = "| figure | published | model | error |\n|---|---|---|---|\n";

    fn table() -> String {
        let mut table = HEAD.to_owned();
        for figure in figures() {
            let [published, model, error] = figure.cells();
            writeln!(table, "| {} | {published} | {model} | {error} |", figure.what).unwrap();
        }
        table
    }

    #[test]
    fn the_page_has_the_figures_of_the_model() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model.md");
        let page = fs::read_to_string(&path).expect("the page is there");
        let table = table();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let begin = page.find(HEAD).expect("the head of the table");
            let end = begin + page[begin..].find("\n\n").expect("text after the table") + 1;
            let page = format!("{}{table}{}", &page[..begin], &page[end..]);
            return fs::write(&path, page).expect("docs are writable");
        }
        let stale = "stale: UPDATE_DOCS=1 cargo test -p quietline-lab --test model_page";
        assert!(page.contains(&table), "{stale}\n{table}");
    }
}
