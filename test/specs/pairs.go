// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// absent in a row means that a field is not set.
const absent = -1

// pair is a combination of two values of two fields.
type pair struct{ field, value, other, otherValue int }

// tries is how many rows are generated for each row that is kept.
const tries = 8

// Rows returns combinations of values in which each pair of values of two fields occurs, if it is
// allowed, and the number of pairs. A row has the index of a value for each field, or absent. The
// algorithm is greedy, and its result is the same each time.
func Rows(fields []Field, exclusive [][]string) (rows [][]int, pairs int) {
	missing := map[pair]bool{}
	for a, field := range fields {
		for b, other := range fields[:a] {
			isExclusive := areExclusive(field.Path, other.Path, exclusive)
			for _, va := range choices(field) {
				for _, vb := range choices(other) {
					if va == absent || vb == absent || !isExclusive {
						missing[pair{a, va, b, vb}] = true
					}
				}
			}
		}
	}
	pairs = len(missing)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	for len(missing) > 0 {
		var best []int
		var most []pair
		for range tries {
			row := makeRow(fields, exclusive, missing, random)
			if met := metBy(row, missing); len(met) > len(most) {
				best, most = row, met
			}
		}
		if len(most) == 0 {
			continue
		}
		for _, p := range most {
			delete(missing, p)
		}
		rows = append(rows, best)
	}
	return rows, pairs
}

func choices(f Field) []int {
	all := []int{absent}
	for i := range f.Valid {
		all = append(all, i)
	}
	return all
}

// makeRow begins with a missing pair, and gives each other field the value with the most missing
// pairs.
func makeRow(fields []Field, exclusive [][]string, missing map[pair]bool, random *rand.Rand) []int {
	row := make([]int, len(fields))
	const unset = -2
	for i := range row {
		row[i] = unset
	}
	first := anyOf(missing, random)
	row[first.field], row[first.other] = first.value, first.otherValue
	for _, i := range random.Perm(len(fields)) {
		if row[i] != unset {
			continue
		}
		best, most := absent, -1
		for _, value := range choices(fields[i]) {
			if met := gain(fields, exclusive, missing, row, i, value, unset); met > most {
				best, most = value, met
			}
		}
		row[i] = best
	}
	return row
}

// anyOf returns a random pair, the same each time.
func anyOf(missing map[pair]bool, random *rand.Rand) pair {
	all := make([]pair, 0, len(missing))
	for p := range missing {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b pair) int {
		return slices.Compare([]int{a.field, a.value, a.other, a.otherValue}, []int{b.field, b.value, b.other, b.otherValue})
	})
	return all[random.IntN(len(all))]
}

// gain returns the number of missing pairs that a value would add, or a negative number if the value is not allowed.
func gain(fields []Field, exclusive [][]string, missing map[pair]bool, row []int, i, value, unset int) int {
	met := 0
	for j, other := range row {
		if other == unset || j == i {
			continue
		}
		if value != absent && other != absent && areExclusive(fields[i].Path, fields[j].Path, exclusive) {
			return -2
		}
		if missing[pair{i, value, j, other}] || missing[pair{j, other, i, value}] {
			met++
		}
	}
	return met
}

// metBy returns the missing pairs that occur in a row.
func metBy(row []int, missing map[pair]bool) (met []pair) {
	for a, va := range row {
		for b, vb := range row[:a] {
			if p := (pair{a, va, b, vb}); missing[p] {
				met = append(met, p)
			}
		}
	}
	return met
}

// areExclusive reports whether two fields may not be set together.
func areExclusive(a, b string, exclusive [][]string) bool {
	for _, group := range exclusive {
		x, y := groupMember(a, group), groupMember(b, group)
		if x >= 0 && y >= 0 && x != y {
			return true
		}
	}
	return false
}

func groupMember(path string, group []string) int {
	return slices.IndexFunc(group, func(member string) bool { return path == member || strings.HasPrefix(path, member+".") })
}
