// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command codestats prints figures about the size, the structure and the language of Drover:
// lines of code, words of documents, how functions are named, how long they are, how large
// packages are, and how many odd constructions of English each has.
//
//	go run ./hack/codestats [-check | -lower] [ROOT]
//
// ROOT is a checkout, by default the current one. The figures are for comparing two checkouts
// and for reviews. With -check, codestats fails if a type has more than 30 methods, or unless each
// package has exactly as many odd constructions as its number in odd-english.txt says. With
// -lower it writes the numbers that have fallen; none can rise.
//
// Production code is everything under apis, cmd, internal and standalone, without generated
// files, tests, and folders that only tests use (named ...test). Start reading at main;
// scan.go reads the files, print.go has the tables, receivers.go counts methods, language.go has the
// odd constructions, passages.go finds the texts in a file, ratchet.go compares the numbers.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
)

func main() {
	check := flag.Bool("check", false, "check the numbers of methods, and of odd constructions of English")
	lower := flag.Bool("lower", false, "write those that have fallen, and fail if one has risen")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if err := run(root, *check, *lower); err != nil {
		fmt.Fprintln(os.Stderr, "codestats:", err)
		os.Exit(1)
	}
}

func run(root string, check, lower bool) error {
	stats, err := scanCheckout(root)
	if err != nil {
		return err
	}
	if lower {
		return stats.lowerNumbers(os.Stderr, root)
	}
	methods, err := countMethods(root, slices.Sorted(maps.Keys(stats.packages)))
	if err != nil {
		return err
	}
	if check {
		return errors.Join(checkMethods(os.Stderr, methods), stats.checkLanguage(os.Stderr, root))
	}
	stats.print(os.Stdout, methods)
	return nil
}
