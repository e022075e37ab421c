// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Percentile returns the percentile by nearest rank: of n values, the ceil(p/100 x n)
// smallest, so p99 of fewer than 100 values is the largest. It returns 0 without values.
func Percentile(s []float64, p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return sorted[min(max(rank, 1), len(s))-1]
}

// Median returns the middle value, or the mean of the two middle values.
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

// Milliseconds returns a duration in ms.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Figures returns one figure of each measurement.
func Figures[T any](all []T, pick func(T) float64) []float64 {
	figures := make([]float64, len(all))
	for n, measurement := range all {
		figures[n] = pick(measurement)
	}
	return figures
}

// resamples is how often Difference resamples; more would not change the printed digits.
const resamples = 4000

// Difference returns the difference between the medians of b and a, and its noise: half
// the width of the 95 % confidence interval by bootstrap, which resamples the measured
// runs. A difference below its noise is not significant. The samples are the same every
// time.
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

// Megabytes returns a number of bytes in MB.
func Megabytes(bytes uint64) float64 { return float64(bytes) / 1e6 }
