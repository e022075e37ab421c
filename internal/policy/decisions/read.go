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

	"cloudnative.tw/drover/internal/policy"
)

const (
	// maxFile bounds the size of a file that is read, in bytes. The files of --decisions are smaller.
	maxFile = 64 << 20
	// maxRecords bounds the decisions of a file, since one that is three bytes long takes 2 KiB of memory.
	// The two files of a replica have fewer.
	maxRecords = 1 << 17
)

// Update is a line of a file with the outcome of an earlier decision.
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

// File is the content of a file.
type File struct {
	Records []Record
	// Broken is how many lines cannot be read, such as the last one of a process that was
	// killed.
	Broken int

	most int // how many decisions it may have
}

// Read reads a file that --decisions has written, or that has the JSON of a history.
func Read(from io.Reader) (File, error) { return readAtMost(maxRecords, from) }

func readAtMost(most int, from io.Reader) (File, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	switch {
	case err != nil:
		return File{}, err
	case len(text) > maxFile:
		return File{}, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	var all struct {
		Replicas []struct {
			Decisions []json.RawMessage `json:"decisions"`
		} `json:"replicas"`
	}
	if json.Unmarshal(text, &all) != nil || all.Replicas == nil {
		return readLines(most, text)
	}
	f := File{most: most}
	for _, h := range all.Replicas {
		for _, decision := range h.Decisions {
			var r Record
			if err = json.Unmarshal(decision, &r); err == nil {
				err = f.add(r)
			}
			if err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

func (f *File) add(r Record) error {
	if len(f.Records) >= f.most {
		return fmt.Errorf("it has more than %d decisions", f.most)
	}
	f.Records = append(f.Records, r)
	return nil
}

// line is a line of a file: a record, or an update, which lacks an input.
type line struct {
	Record
	Input *policy.Input `json:"input"`
	Later *Later        `json:"later"`
}

func readLines(most int, text []byte) (f File, err error) {
	f.most = most
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
			if err := f.add(l.Record); err != nil {
				return f, err
			}
		case err == nil && l.Later != nil && known:
			f.Records[n].merge(*l.Later)
		case err == nil && l.Later != nil: // its record is in an older file
		default:
			f.Broken++
		}
	}
	if lines.Err() == nil && len(f.Records) == 0 {
		return f, errors.New("it does not contain any decisions")
	}
	return f, lines.Err()
}

// merge adds facts that became known later.
func (r *Record) merge(later Later) {
	if later.Repeats > 0 {
		r.Repeats, r.Until = later.Repeats, later.Until
	}
	if later.Outcome != (Outcome{}) {
		r.Outcome = later.Outcome
	}
}
