// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bytesize prints numbers of bytes for people. Start with Format.
package bytesize

import "fmt"

// Format returns a number of bytes in the largest unit that leaves at least two digits.
func Format[N int64 | uint64](n N) string {
	for _, unit := range []struct {
		shift int
		name  string
	}{{30, "GiB"}, {20, "MiB"}} {
		if n >= 10<<unit.shift {
			return fmt.Sprintf("%d %s", n>>unit.shift, unit.name)
		}
	}
	if n >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", (n+1<<10-1)>>10)
}
