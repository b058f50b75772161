/// Seconds of a day.
pub const DAY_SECONDS: u64 = 86_400;
/// The last second of the year 9999: what comes later has no four digits.
pub const LAST_SECOND: u64 = 253_402_300_799;
/// Days from 0000-03-01, where eras of 400 years begin, to 1970-01-01.
const EPOCH_DAYS: u64 = 719_468;
/// Days of 400 years.
const ERA_DAYS: u64 = 146_097;

/// A date of the Gregorian calendar and a time of day, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// 1970 to 9999.
    pub year: u32,
    /// From 1.
    pub month: u32,
    /// From 1.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 59, or 60 for a leap second.
    pub second: u32,
}

/// The date of so many seconds since 1970, not beyond the year 9999.
pub fn civil(unix_s: u64) -> Civil {
    let unix_s = unix_s.min(LAST_SECOND);
    let (days, seconds) = (unix_s / DAY_SECONDS, (unix_s % DAY_SECONDS) as u32);
    // Years that begin in March, so that the leap day is their last, in eras of 400.
    let days = days + EPOCH_DAYS;
    let (era, day_of_era) = (days / ERA_DAYS, (days % ERA_DAYS) as u32);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    Civil {
        year: era as u32 * 400 + year_of_era + u32::from(month <= 2),
        month,
        day: day_of_year - (153 * shifted + 2) / 5 + 1,
        hour: seconds / 3600,
        minute: seconds / 60 % 60,
        second: seconds % 60,
    }
}

impl Civil {
    /// Seconds since 1970, unless it is no date or an earlier one.
    pub fn unix_s(self) -> Option<u64> {
        let valid = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            // A leap second is written as 60.
            && self.second <= 60;
        if !valid {
            return None;
        }
        let year = u64::from(self.year - u32::from(self.month <= 2));
        let shifted = u64::from(if self.month > 2 { self.month - 3 } else { self.month + 9 });
        let year_of_era = year % 400;
        let day_of_era =
            year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * shifted + 2) / 5 + u64::from(self.day - 1);
        let days = (year / 400 * ERA_DAYS + day_of_era).checked_sub(EPOCH_DAYS)?;
        let unix_s = days * DAY_SECONDS + u64::from(self.hour * 3600 + self.minute * 60 + self.second);
        // What a month does not have, such as the 31st of April, is another date.
        (civil(days * DAY_SECONDS).day == self.day).then_some(unix_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_days_as_the_calendar_does() {
        for ((year, month, day), days) in [
            ((1970, 1, 1), 0),
            ((1972, 2, 29), 789),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2026, 11, 20), 20_777),
            ((2100, 3, 1), 47_541),
        ] {
            let date = Civil { year, month, day, hour: 23, minute: 59, second: 58 };
            assert_eq!(date.unix_s(), Some((days + 1) * DAY_SECONDS - 2), "{date:?}");
            assert_eq!(civil((days + 1) * DAY_SECONDS - 2), date);
        }
    }
}
