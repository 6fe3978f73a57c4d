//! Published and computed vectors of the estimates (mechanisms of the statistics: Cohen 1959).

use super::*;

fn close(found: f64, wanted: f64, relative: f64) -> bool {
    (found - wanted).abs() <= relative * wanted.abs()
}

/// Rows by gamma, columns by h.
#[test]
fn lambda_has_its_tabled_values() {
    let columns = [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
    let rows: [(f64, [f64; 13]); 7] = [
        (
            0.0,
            [
                0.01010, 0.05251, 0.11020, 0.17342, 0.24268, 0.31862, 0.40210, 0.59607, 0.83684,
                1.14536, 1.56148, 2.17591, 3.28261,
            ],
        ),
        (
            0.05,
            [
                0.01055, 0.05467, 0.11431, 0.17935, 0.25033, 0.32793, 0.41301, 0.61011, 0.85396,
                1.16559, 1.58499, 2.20304, 3.31419,
            ],
        ),
        (
            0.1,
            [
                0.01095, 0.05660, 0.11804, 0.18479, 0.25741, 0.33662, 0.42326, 0.62343, 0.87033,
                1.18508, 1.60777, 2.22948, 3.34516,
            ],
        ),
        (
            0.2,
            [
                0.01164, 0.05999, 0.12469, 0.19460, 0.27031, 0.35255, 0.44219, 0.64829, 0.90118,
                1.22212, 1.65140, 2.28049, 3.40541,
            ],
        ),
        (
            0.3,
            [
                0.01224, 0.06297, 0.13059, 0.20338, 0.28193, 0.36700, 0.45946, 0.67125, 0.92995,
                1.25696, 1.69279, 2.32930, 3.46360,
            ],
        ),
        (
            0.5,
            [
                0.01328, 0.06813, 0.14090, 0.21882, 0.30253, 0.39276, 0.49044, 0.71286, 0.98262,
                1.32136, 1.77002, 2.42129, 3.57456,
            ],
        ),
        (
            1.0,
            [
                0.01534, 0.07847, 0.16170, 0.25022, 0.34471, 0.44592, 0.55481, 0.80051, 1.09506,
                1.46072, 1.93952, 2.62636, 3.82674,
            ],
        ),
    ];
    for (gamma, wanted) in rows {
        for (h, wanted) in columns.iter().zip(wanted) {
            let found = lambda(*h, gamma);
            assert!((found - wanted).abs() < 6e-6, "lambda({h}, {gamma}) = {found}, {wanted}");
        }
    }
}

#[test]
fn a_textbook_sample_that_is_censored_on_the_left_has_its_estimates() {
    let observed = [
        6.9, 7.8, 8.9, 7.7, 9.6, 8.7, 6.7, 8.0, 8.5, 6.5, 9.2, 7.4, 6.3, 7.3, 8.3, 7.2, 7.5, 6.1,
        9.4, 7.6, 8.1, 7.9, 10.1,
    ];
    let found = Censored::of(&observed, 4, 6.0).expect("an estimate");
    assert!(close(found.lambda, 0.201_147, 3e-6), "{found:?}");
    assert!(close(found.mu, 7.517_820, 1e-6) && close(found.sigma, 1.354_241, 1e-6));
}

#[test]
fn samples_censored_at_the_line_rate_have_their_estimates() {
    type Vector = (&'static [f64], usize, f64, [f64; 4]);
    let vectors: [Vector; 4] = [
        (
            &[8.01, 7.42, 9.10, 6.95],
            2,
            9.415,
            [0.520_224_502, 8.673_746_86, 1.373_731_74, 0.605_743_961],
        ),
        (
            &[9.02, 8.75, 9.21],
            3,
            9.415,
            [0.901_287_449, 9.373_376_21, 0.442_576_134, 0.221_841_837],
        ),
        (
            &[7.604, 7.2, 8.1, 6.9, 7.9],
            1,
            9.415,
            [0.202_982_819, 7.921_230_4, 0.952_628_582, 0.395_276_666],
        ),
        (&[1.0, 2.0, 3.0, 4.0], 1, 5.0, [0.270_311_206, 3.175_778_01, 1.714_480_98, 0.787_714_96]),
    ];
    for (observed, censored, limit, wanted) in vectors {
        let found = Censored::of(observed, censored, limit).expect("an estimate");
        let found = [found.lambda, found.mu, found.sigma, found.se_mu];
        assert!(found.iter().zip(wanted).all(|(f, w)| close(*f, w, 1e-7)), "{found:?} {wanted:?}");
    }
    let first = Censored::of(&[8.01, 7.42, 9.10, 6.95], 2, 9.415).expect("an estimate");
    assert!(close(first.se_sigma, 0.529_476_509, 1e-7), "{first:?}");
    assert!(close(first.ln_likelihood, -8.757_793_2, 1e-7), "{first:?}");
}

#[test]
fn without_censored_runs_the_estimate_is_the_ordinary_one() {
    let found = Censored::of(&[1.0, 2.0, 3.0], 0, 9.0).expect("an estimate");
    assert!(close(found.mu, 2.0, 1e-12) && close(found.sigma, (2.0_f64 / 3.0).sqrt(), 1e-12));
    assert!(close(found.se_mu, found.sigma / 3.0_f64.sqrt(), 1e-12));
}

#[test]
fn samples_without_an_estimate_are_refused() {
    assert_eq!(Censored::of(&[1.0], 3, 2.0), Err(CensoredError::TooFewObserved));
    assert_eq!(Censored::of(&[1.0, 1.0], 3, 2.0), Err(CensoredError::TooFewObserved));
    assert_eq!(Censored::of(&[1.0, 3.0], 1, 2.0), Err(CensoredError::BeyondLimit));
    assert_eq!(Censored::of(&[1.0, 2.0], 1, 2.0), Err(CensoredError::BeyondLimit));
}

#[test]
fn a_clear_difference_of_censored_samples_is_found_and_none_is_not() {
    let low = [5.1, 5.6, 4.9, 5.3, 5.2];
    let high = [8.9, 9.1, 8.7];
    let p = likelihood_ratio((&low, 0), (&high, 3), 9.415, 199, 1).expect("estimates");
    assert!(p < 0.02, "{p}");
    let p = likelihood_ratio((&high, 3), (&[8.8, 9.2, 8.6], 3), 9.415, 199, 1).expect("estimates");
    assert!(p > 0.2, "{p}");
}
