// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxFile bounds what is read of a file, in bytes. The files of --decisions are smaller.
const maxFile = 256 << 20

// Update is a line of a file that says what became of an earlier decision.
type Update struct {
	Replica  string `json:"replica"`
	Sequence uint64 `json:"sequence"`
	Later    Later  `json:"later"`
}

// Histories are the answers of several replicas, as kubectl vm explain --history -o json prints
// them.
type Histories struct {
	Replicas []History `json:"replicas"`
}

// File is what a file has.
type File struct {
	Records []Record
	// Broken is how many lines cannot be read, such as the last one of a process that was
	// killed.
	Broken int
}

// Read reads a file that --decisions has written, or that has the JSON of a history.
func Read(from io.Reader) (File, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	switch {
	case err != nil:
		return File{}, err
	case len(text) > maxFile:
		return File{}, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	var all Histories
	if json.Unmarshal(text, &all) == nil && all.Replicas != nil {
		var f File
		for i := range all.Replicas {
			f.Records = append(f.Records, all.Replicas[i].Decisions...)
		}
		return f, nil
	}
	return readLines(text)
}

// line is a line of a file: a record, or an update, which has no input.
type line struct {
	Record
	Input *Input `json:"input"`
	Later *Later `json:"later"`
}

func readLines(text []byte) (f File, err error) {
	index := map[string]int{} // of the record of a replica and sequence
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var l line
		err := json.Unmarshal(lines.Bytes(), &l)
		key := fmt.Sprint(l.Replica, "/", l.Sequence)
		n, known := index[key]
		switch {
		case err == nil && l.Input != nil:
			l.Record.Input = *l.Input
			index[key] = len(f.Records)
			f.Records = append(f.Records, l.Record)
		case err == nil && l.Later != nil && known:
			f.Records[n].merge(*l.Later)
		case err == nil && l.Later != nil: // its record is in an older file
		default:
			f.Broken++
		}
	}
	if lines.Err() == nil && len(f.Records) == 0 {
		return f, errors.New("it has no decisions")
	}
	return f, lines.Err()
}

// merge adds what became known later.
func (r *Record) merge(later Later) {
	if later.Repeats > 0 {
		r.Repeats, r.Until = later.Repeats, later.Until
	}
	if later.Outcome.Set {
		r.Outcome = later.Outcome
	}
}
