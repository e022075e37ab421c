// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Percentile is the nearest rank: with n values, the p-th is the ceil(p/100 x n)
// smallest, so p99 of fewer than 100 is the largest. No values have none.
func Percentile(s []float64, p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return sorted[min(max(rank, 1), len(s))-1]
}

// Median is the middle, or the mean of the two middle ones.
func Median(s []float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	half := len(s) / 2
	if len(s)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// Milliseconds of a duration.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Figures are one figure of all measurements.
func Figures[T any](all []T, pick func(T) float64) []float64 {
	figures := make([]float64, len(all))
	for n, one := range all {
		figures[n] = pick(one)
	}
	return figures
}

// resamples is how often Difference draws; more would change no digit shown.
const resamples = 4000

// Difference returns how much larger b's median is than a's, and the noise of that:
// half of the range of 95 of 100 differences when runs are drawn again from the
// measured ones (bootstrap). A difference below its noise may be none. The draw is
// the same every time.
func Difference(a, b []float64) (median, noise float64) {
	draw := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // statistics, not secrets
	differences := make([]float64, resamples)
	for n := range differences {
		differences[n] = Median(resample(draw, b)) - Median(resample(draw, a))
	}
	return Median(b) - Median(a), (Percentile(differences, 97.5) - Percentile(differences, 2.5)) / 2
}

func resample(draw *rand.Rand, s []float64) []float64 {
	drawn := make([]float64, len(s))
	for n := range drawn {
		drawn[n] = s[draw.IntN(len(s))]
	}
	return drawn
}

// Megabytes of bytes.
func Megabytes(bytes uint64) float64 { return float64(bytes) / 1e6 }
