// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sample has code for each operator of package mutants.
package sample

import (
	"errors"
	"time"
)

var errEmpty = errors.New("empty")

// Log is a list of lines.
type Log struct {
	Lines []string
	open  bool
}

// Add appends a line.
func (l *Log) Add(line string) {
	defer func() { l.open = false }()
	l.open = true
	l.Lines = append(l.Lines, line)
}

// Between reports whether n is from 1 to 9.
func Between(n int) bool { return n > 0 && !(n >= 10) }

// First returns the first positive number.
func First(numbers []int) (int, error) {
	for _, n := range numbers {
		if n <= 0 {
			continue
		}
		return n, nil
	}
	return 0, errEmpty
}

// Wait returns how long to wait. No test looks at it when again is set.
func Wait(again bool) time.Duration {
	if again {
		return 2 * time.Second
	}
	return time.Minute
}

// Kind describes a number. No test runs it.
func Kind(n int32) string {
	switch {
	case n == 0, n < -1:
		return "odd"
	}
	return ""
}

// Both returns two values of another function.
func Both(numbers ...int) (n int, err error) { return First(numbers) }

// Range is from one number to another.
type Range struct {
	From, To int
	Name     string
}

// Swap exchanges the ends, and counts.
func (r *Range) Swap(count *int) { r.From, r.To, *count = r.To, r.From, *count+1 }

// NewRange returns a range with a name, at which no test looks.
func NewRange(from, to int) Range {
	return Range{From: from, To: to, Name: "from " + Kind(int32(from))}
}
