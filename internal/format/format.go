// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package format has the rules by which what Drover writes may grow, so that a host can be upgraded and gone back
// from.
//
// Start with Decode and Encode, for JSON records. A reader ignores fields that it does not know, and keeps them when
// it writes the record again. It refuses a record whose field mustUnderstand names something that it does not know.
// So an addition that stays true whatever else an earlier version changes is a new field, and any other addition is
// also listed in mustUnderstand. dataversion.go has the version of a whole folder.
//
// # Formats
//
//   - server.json of driver qemu, UID.json of driver fake, disk.json in pods: records. A reader that is too old refuses
//     this server, whose machine runs on.
//   - data dirs and folders of drivers: data-version. A program that is too old refuses to start.
//   - the description of drover-machine: a record. Unknown fields are errors if a person has written it.
//   - annotations of pods and PVCs: an earlier version ignores further annotations, and leaves them.
//   - the end and the exit of a run: only fields that may be ignored, since even a damaged file proves the end.
//   - supervisor.json, started.json, run/state.json: only such fields, since each start replaces the files.
//   - engines.json: a list to which entries are added, each with fields that may be ignored.
//   - calls of supervisors: further calls. A call never changes its meaning.
//   - requests to the agent in a guest: further verbs. The host asks which ones the agent has.
//   - the start of a supervisor, the broker, and the boot of a guest: a number, since both sides are of one package.
//   - fetched images: another magic word, or another name in the store. An earlier version fetches the image again.
package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Version is the version of Drover, which the linker sets.
var Version = "dev"

// Header is embedded in records.
type Header struct {
	// MustUnderstand maps the names of the additions that every reader has to know to the first version of Drover that
	// knows them. It is never nil in a record of Drover, and nil in one that a person has written.
	MustUnderstand map[string]string `json:"mustUnderstand,omitzero"`

	// source is the decoded text if it has unknown fields, else "".
	source string
}

func (h *Header) header() *Header { return h }

// record is a pointer to a struct that embeds Header.
type record[T any] interface {
	*T
	header() *Header
}

// understood are the names in MustUnderstand that this version knows.
var understood = map[string]bool{}

// UnknownError means that a text has an addition which this version has to understand, and does not.
type UnknownError struct {
	// Name is the name of the addition, and Since the first version of Drover that knows it.
	Name, Since string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("mustUnderstand has %.100q, which Drover %.40s and later versions know, and this is Drover %s: upgrade to one of those", e.Name, e.Since, Version)
}

// Check returns an UnknownError if a text names an addition that this version does not know.
func Check(text []byte) error {
	var head Header
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(head.MustUnderstand)) {
		if !understood[name] {
			return &UnknownError{Name: name, Since: head.MustUnderstand[name]}
		}
	}
	return nil
}

// Decode decodes a record that Encode has written. It remembers unknown fields for Encode.
func Decode[T any, P record[T]](text []byte) (T, error) {
	var r T
	if err := Check(text); err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if checkFields(text, new(T)) != nil {
		P(&r).header().source = string(text)
	}
	return r, nil
}

// DecodeEdited is Decode for a record that people may write too. If the text lacks mustUnderstand, as people write it,
// unknown fields are errors, since they may be mistyped.
func DecodeEdited[T any, P record[T]](text []byte) (T, error) {
	r, err := Decode[T, P](text)
	if err == nil && P(&r).header().MustUnderstand == nil {
		err = checkFields(text, new(T))
	}
	return r, err
}

// checkFields fails if a valid text has fields that value lacks.
func checkFields(text []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}

// Encode returns a record as JSON, with the unknown fields that Decode has found in it.
func Encode[T any, P record[T]](r T) ([]byte, error) {
	h := P(&r).header()
	if h.MustUnderstand == nil {
		h.MustUnderstand = map[string]string{}
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil && h.source != "" {
		text, err = addUnknown[T](text, h.source)
	}
	if err == nil {
		text, err = addNextFields(text)
	}
	return append(text, '\n'), err
}

// addUnknown adds to text the fields of source that T lacks.
func addUnknown[T any](text []byte, source string) ([]byte, error) {
	var known T
	if err := json.Unmarshal([]byte(source), &known); err != nil {
		return nil, err
	}
	rewritten, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	var trees [3]any
	for n, t := range [][]byte{[]byte(source), rewritten, text} {
		decoder := json.NewDecoder(bytes.NewReader(t))
		decoder.UseNumber()
		if err := decoder.Decode(&trees[n]); err != nil {
			return nil, err
		}
	}
	return json.MarshalIndent(keepUnknown(trees[0], trees[1], trees[2]), "", "  ")
}

// keepUnknown adds the unknown fields of source to next, which is the new value of the same field. known is source as
// this version would write it. An element of a list keeps its unknown fields if the rest of it has not changed.
func keepUnknown(source, known, next any) any {
	switch source := source.(type) {
	case map[string]any:
		known, isKnown := known.(map[string]any)
		next, isStill := next.(map[string]any)
		if isKnown && isStill {
			keepFields(source, known, next)
		}
	case []any:
		known, isKnown := known.([]any)
		next, isStill := next.([]any)
		for n := 0; isKnown && isStill && n < min(len(source), len(known), len(next)); n++ {
			if reflect.DeepEqual(known[n], next[n]) {
				next[n] = keepUnknown(source[n], known[n], next[n])
			}
		}
	}
	return next
}

func keepFields(source, known, next map[string]any) {
	for name, value := range source {
		switch hasName := isNamed(name); {
		case !hasKey(known, hasName) && !hasKey(next, hasName):
			next[name] = value
		case known[name] != nil && next[name] != nil:
			next[name] = keepUnknown(value, known[name], next[name])
		}
	}
}

// isNamed returns a function that compares with a name as package json does.
func isNamed(name string) func(string) bool {
	return func(other string) bool { return strings.EqualFold(name, other) }
}

func hasKey(fields map[string]any, is func(string) bool) bool {
	for name := range fields {
		if is(name) {
			return true
		}
	}
	return false
}
