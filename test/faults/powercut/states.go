// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// sector is the number of bytes that a disk writes completely or not at all.
const sector = 512

// recent is how many of the last changes are dropped or kept one by one. Older changes were recent
// in shorter prefixes.
const recent = 8

// State is a possible state of disks after a power cut.
type State struct {
	// Marks are the marks that the workload had passed, in order.
	Marks []string
	// Text describes in words how the state came about, and Number identifies the state.
	Text   string
	Number int

	disk *disk
}

// Write creates the state in a folder of this host.
func (s State) Write(folder string) error {
	tree := s.disk.tree()
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		create := func(at string) error {
			file := tree[path]
			if file.mode == os.ModeSymlink {
				return os.Symlink(string(file.data), at)
			}
			return errors.Join(os.WriteFile(at, file.data, 0o600), os.Truncate(at, file.size), os.Chmod(at, cmp.Or(file.mode, 0o600)))
		}
		if strings.HasSuffix(path, "/") {
			create = func(at string) error { return os.MkdirAll(at, 0o700) }
		}
		if err := create(filepath.Join(folder, path)); err != nil {
			return err
		}
	}
	return nil
}

// FileAt returns the content of the file with a path, and whether the file exists.
func (s State) FileAt(path string) ([]byte, bool) {
	file := s.disk.findFile(path)
	_, isFolder := s.disk.folders[file]
	return s.disk.files[file].bytes(), file != 0 && !isFolder
}

// filesIn returns the paths of the files in a folder of the state.
func (s State) filesIn(folder string) (paths []string) {
	for name := range s.disk.folders[s.disk.findFile(folder)] {
		paths = append(paths, filepath.Join(folder, name))
	}
	slices.Sort(paths)
	return paths
}

// sum identifies the state.
func (s State) sum() (sum [32]byte) {
	hash := sha256.New()
	_, _ = fmt.Fprintf(hash, "%q", s.Marks)
	tree := s.disk.tree()
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		_, _ = fmt.Fprintf(hash, "%q %d %d %o ", path, tree[path].size, len(tree[path].data), tree[path].mode)
		_, _ = hash.Write(tree[path].data)
	}
	return [32]byte(hash.Sum(nil))
}

// Recording has the changes of a workload, in order.
type Recording struct{ ops []op }

// Len returns the number of changes, not counting syncs and marks.
func (r *Recording) Len() int {
	n := 0
	for _, o := range r.ops {
		if o.kind != opSync && o.kind != opMark {
			n++
		}
	}
	return n
}

// After returns the state at a mark, with all changes before it.
func (r *Recording) After(mark string) (State, bool) {
	n := slices.IndexFunc(r.ops, func(o op) bool { return o.kind == opMark && o.text == mark })
	if n < 0 {
		return State{}, false
	}
	return r.replay(n+1, choice{text: "all written"}), true
}

// End returns the state after all changes.
func (r *Recording) End() State { return r.replay(len(r.ops), choice{text: "all written"}) }

// Options select states.
type Options struct {
	// Random is the number of random choices of dropped and torn writes for each prefix.
	Random int
	// Share is n to select one of n states at random, 1 for all.
	Share int
	Seed  uint64
}

// States calls look once for each selected state and returns their number. For each prefix of the
// record there are states with all changes that were not durable, without them, with all but one of
// them, with only one of them, and with random choices in which writes may be torn.
func (r *Recording) States(o Options, look func(State) error) (int, error) {
	e := explorer{Options: o, recording: r, random: rand.New(rand.NewPCG(o.Seed, 0)), seen: map[[32]byte]bool{}, look: look} //nolint:gosec // no secret
	for n := range len(r.ops) + 1 {
		if n > 0 && r.ops[n-1].kind == opSync {
			continue // its states are among those of the next prefix
		}
		if err := e.explorePrefix(n); err != nil {
			return e.count, err
		}
	}
	return e.count, nil
}

type explorer struct {
	Options

	recording *Recording
	random    *rand.Rand
	seen      map[[32]byte]bool
	count     int
	look      func(State) error
}

// explorePrefix visits the possible states after a power cut after n operations.
func (e *explorer) explorePrefix(n int) error {
	loose := e.recording.looseAt(n)
	choices := []choice{{text: "all written"}, {dropped: sets.New(loose...), text: "nothing written that was not synced"}}
	for _, i := range loose[max(0, len(loose)-recent):] {
		choices = append(choices,
			choice{dropped: sets.New(i), text: "not written: " + e.recording.ops[i].text},
			choice{dropped: sets.New(loose...).Delete(i), text: "alone written: " + e.recording.ops[i].text})
	}
	for range e.Random {
		choices = append(choices, e.randomChoice(loose))
	}
	for _, c := range choices {
		if err := e.visit(n, c); err != nil {
			return err
		}
	}
	return nil
}

// choice says which changes are lost.
type choice struct {
	dropped sets.Set[int]
	// torn is the length of the written part of a change.
	torn map[int]int
	text string
}

func (e *explorer) randomChoice(loose []int) choice {
	c := choice{dropped: sets.New[int](), torn: map[int]int{}, text: "by chance"}
	for _, i := range loose {
		sectors := len(e.recording.ops[i].data) / sector
		switch {
		case e.random.IntN(2) == 0:
			c.dropped.Insert(i)
			c.text += "; not written: " + e.recording.ops[i].text
		case sectors > 0 && e.random.IntN(2) == 0:
			c.torn[i] = e.random.IntN(sectors) * sector
			c.text += fmt.Sprintf("; only %d bytes written: %s", c.torn[i], e.recording.ops[i].text)
		}
	}
	return c
}

func (e *explorer) visit(n int, c choice) error {
	if e.Share > 1 && e.random.IntN(e.Share) > 0 {
		return nil
	}
	s := e.recording.replay(n, c)
	sum := s.sum()
	if e.seen[sum] {
		return nil
	}
	e.seen[sum] = true
	e.count++
	s.Number = e.count
	return e.look(s)
}

// looseAt returns the changes among the first n operations that were not durable after them.
func (r *Recording) looseAt(n int) []int {
	var loose []int
	for i, o := range r.ops[:n] {
		if o.kind == opSync {
			loose = slices.DeleteFunc(loose, func(i int) bool { return r.ops[i].isDurableBy(o) })
		} else if o.kind != opMark {
			loose = append(loose, i)
		}
	}
	return loose
}

// replay returns the state after n operations, without the changes that a choice drops.
func (r *Recording) replay(n int, c choice) State {
	s := State{disk: newDisk(), Text: fmt.Sprintf("after operation %d, %s", n, c.text)}
	for i, o := range r.ops[:n] {
		if o.isMkdir { // even if its name is dropped: its files may be renamed to other folders
			s.disk.folders[o.entries[0].file] = map[string]fileID{}
		}
		if length, torn := c.torn[i]; torn {
			o.data = o.data[:length]
		}
		if o.kind == opMark {
			s.Marks = append(s.Marks, o.text)
		}
		if !c.dropped.Has(i) {
			s.disk.apply(o)
		}
	}
	return s
}
