// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"strings"
)

// maxNamed is how many files a message names.
const maxNamed = 3

// list counts files, and names the first of them.
type list struct {
	count int
	named []string
}

// add counts a file, and names it with the reason if it is one of the first.
func (l *list) add(name string, reason any) {
	if l.count++; len(l.named) < maxNamed {
		l.named = append(l.named, fmt.Sprintf("%.200q: %v", name, reason))
	}
}

// String returns the names, and how many files it does not name.
func (l *list) String() string {
	text := strings.Join(l.named, "; ")
	if more := l.count - len(l.named); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// LeftOutError means that some files were left out, and everything else was copied.
type LeftOutError struct{ list }

// Error implements error.
func (e *LeftOutError) Error() string {
	return fmt.Sprintf("%d files were left out: %s", e.count, e.String())
}

// err returns the error, or nil if nothing was left out.
func (e *LeftOutError) err() error {
	if e.count == 0 {
		return nil
	}
	return e
}

// Overwritten is a list of files that were overwritten in place. A program that read such a file meanwhile may have got
// incomplete content.
type Overwritten struct{ list }

// Describe returns a line for users, or nothing if no file was overwritten.
func (o *Overwritten) Describe() string {
	if o.count == 0 {
		return ""
	}
	return fmt.Sprintf("%d files were overwritten in place: %s", o.count, o.String())
}
