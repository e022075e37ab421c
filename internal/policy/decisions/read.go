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

const (
	// maxFile bounds what is read of a file, in bytes. The files of --decisions are smaller.
	maxFile = 256 << 20
	// maxRecords bounds the decisions of a file, since one of three bytes takes 2 KiB in memory.
	// The two files of a replica have fewer.
	maxRecords = 1 << 17
)

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

	most int // decisions
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
		Replicas json.RawMessage `json:"replicas"`
	}
	if json.Unmarshal(text, &all) == nil && all.Replicas != nil {
		f := File{most: most}
		err := eachElement(all.Replicas, f.addHistory)
		return f, err
	}
	return readLines(most, text)
}

// addHistory adds the decisions of a History.
func (f *File) addHistory(from *json.Decoder) error {
	var h struct {
		Decisions json.RawMessage `json:"decisions"`
	}
	if err := from.Decode(&h); err != nil {
		return err
	}
	return eachElement(h.Decisions, func(from *json.Decoder) error {
		var r Record
		if err := from.Decode(&r); err != nil {
			return err
		}
		return f.add(r)
	})
}

func (f *File) add(r Record) error {
	if len(f.Records) >= f.most {
		return fmt.Errorf("it has more than %d decisions", f.most)
	}
	f.Records = append(f.Records, r)
	return nil
}

// eachElement calls decode for each element of a JSON array, so that they are not all in memory
// before they are counted.
func eachElement(array []byte, decode func(*json.Decoder) error) error {
	if len(array) == 0 {
		return nil
	}
	from := json.NewDecoder(bytes.NewReader(array))
	switch begin, err := from.Token(); {
	case err != nil:
		return err
	case begin == nil:
		return nil
	case begin != json.Delim('['):
		return errors.New("it has no list of decisions")
	}
	for from.More() {
		if err := decode(from); err != nil {
			return err
		}
	}
	return nil
}

// line is a line of a file: a record, or an update, which has no input.
type line struct {
	Record
	Input *Input `json:"input"`
	Later *Later `json:"later"`
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
