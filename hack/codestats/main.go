// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command codestats prints figures about the size and the structure of Drover: lines of
// code, words of documents, how functions are named, how long they are, and how large
// packages are.
//
//	go run ./hack/codestats [ROOT]
//
// ROOT is a checkout, by default the current one. Nothing fails by a figure:
// they are for comparing two checkouts and for reviews.
//
// Production code is what lies under apis, cmd, internal and standalone, without
// generated files, tests, and what lies in folders that only tests use (named ...test).
// Start reading at main; scan.go reads the files, print.go has the tables.
package main

import (
	"fmt"
	"os"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := run(root); err != nil {
		fmt.Fprintln(os.Stderr, "codestats:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	stats, err := scanCheckout(root)
	if err != nil {
		return err
	}
	stats.print(os.Stdout)
	return nil
}
