// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package active chooses at run time which mutant a test binary is. Only code that
// package mutants has rewritten imports it. Start with Is.
package active

import (
	"cmp"
	"os"
	"strconv"
	"sync"
)

const (
	// Variable is the environment variable with the number of the active mutant.
	Variable = "DROVER_MUTANT"
	// ReachedVariable is the environment variable that names a file, to which the number
	// of each mutant is appended once its code runs.
	ReachedVariable = "DROVER_MUTANTS_REACHED"
)

var (
	number, _ = strconv.Atoi(os.Getenv(Variable)) // 0, which is no mutant, without the variable
	reached   = openReached()
	seen      sync.Map
)

func openReached() *os.File {
	name := os.Getenv(ReachedVariable)
	if name == "" {
		return nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	return file
}

// Is reports whether a mutant is active.
func Is(n int) bool {
	if reached != nil {
		record(n)
	}
	return n == number
}

func record(n int) {
	if _, again := seen.LoadOrStore(n, true); again {
		return
	}
	if _, err := reached.WriteString(strconv.Itoa(n) + "\n"); err != nil {
		panic(err)
	}
}

// Compare compares two values by an operator. Mutant first includes or excludes equality
// instead, and mutant first+1 negates the comparison.
func Compare[T cmp.Ordered](first int, operator string, a, b T) bool {
	moved, negated := Is(first), Is(first+1)
	return compare(operator, a, b) != (moved && a == b) != negated
}

func compare[T cmp.Ordered](operator string, a, b T) bool {
	switch operator {
	case "<":
		return a < b
	case "<=":
		return a <= b
	case ">":
		return a > b
	default:
		return a >= b
	}
}

// Integer is a type of which there are integer constants.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Number returns n or, if one of the mutants from first on is active, its value of others.
func Number[T Integer](first int, n T, others ...T) T {
	for i, other := range others {
		if Is(first + i) {
			return other
		}
	}
	return n
}

// Field returns a value or, if mutant n is active, the zero value.
func Field[T any](n int, value T) T {
	if Is(n) {
		return *new(T)
	}
	return value
}
