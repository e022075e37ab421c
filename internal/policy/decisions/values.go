// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// Optional is a value that may be missing. Unlike pointers, two of them are equal if their
// values are.
type Optional[T comparable] struct {
	Set   bool
	Value T
}

func optional[P, T comparable](p *P, value func(P) T) (o Optional[T]) {
	if p != nil {
		o.Set, o.Value = true, value(*p)
	}
	return o
}

// pointer is the opposite of optional.
func pointer[P any, T comparable](o Optional[T], value func(T) P) *P {
	if !o.Set {
		return nil
	}
	p := value(o.Value)
	return &p
}

func same[T any](value T) T { return value }

// IsZero reports whether the value is missing. It is then left out of JSON.
func (o Optional[T]) IsZero() bool { return !o.Set }

// MarshalJSON implements json.Marshaler.
func (o Optional[T]) MarshalJSON() ([]byte, error) {
	if !o.Set {
		return []byte("null"), nil
	}
	return json.Marshal(o.Value)
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *Optional[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*o = Optional[T]{}
		return nil
	}
	o.Set = true
	return json.Unmarshal(text, &o.Value)
}

// List is a list of names. Two lists compare with ==, and nil differs from an empty list.
type List struct {
	set    bool
	joined string // each name ends with nameEnd
}

const nameEnd = "\x00"

// maxNames bounds a list. The status has at most 64 fields.
const maxNames = 64

func listOf(names []string) List {
	if len(names) == 0 {
		return List{set: names != nil}
	}
	names = names[:min(len(names), maxNames)]
	return List{true, strings.Join(names, nameEnd) + nameEnd}
}

// Names returns the list as a slice.
func (l List) Names() []string {
	if !l.set {
		return nil
	}
	names := strings.Split(l.joined, nameEnd)
	return names[:len(names)-1]
}

// IsZero reports whether the list is nil. It is then left out of JSON.
func (l List) IsZero() bool { return !l.set }

// MarshalJSON implements json.Marshaler.
func (l List) MarshalJSON() ([]byte, error) { return json.Marshal(l.Names()) }

// UnmarshalJSON implements json.Unmarshaler.
func (l *List) UnmarshalJSON(text []byte) error {
	var names []string
	err := json.Unmarshal(text, &names)
	*l = listOf(names)
	return err
}

// clockBase turns times into those of the host's clock, in UTC. A wait counts by the monotonic
// clock, which goes on evenly when someone sets the host's. So each time is recorded by its
// distance from now, and a replay finds the same order.
type clockBase struct{ now, wall time.Time }

func newClockBase(now time.Time) clockBase { return clockBase{now, now.Round(0).UTC()} }

// at returns the time to record. The zero time stays what it is.
func (b clockBase) at(t time.Time) time.Time {
	wall := t.Round(0)
	if wall == t { //nolint:staticcheck // Equal would not tell that there is no monotonic reading.
		return wall.UTC()
	}
	return b.wall.Add(t.Sub(b.now))
}

const (
	// maxText is how many bytes of a text of a decision are kept.
	maxText = 1024
	// maxInputText is that of an input. It is more, so that what a message has of it is cut at
	// the same place in the recorded decision and in the derived one.
	maxInputText = maxText + 64
)

// cut returns the beginning of a text, as valid UTF-8. A longer one does not keep the rest in
// memory.
func cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return strings.Clone(text[:most])
}

func cutInput(text string) string { return cut(text, maxInputText) }

func cutText(text string) string { return cut(text, maxText) }
