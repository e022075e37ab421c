// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guestwrites

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"cloudnative.tw/drover/hack/guest/blocks"
)

// sector is the size that a disk writes whole or not at all, in bytes.
const sector = 512

// errPowerCut is the end of a disk without power.
var errPowerCut = errors.New("the power is cut")

// claims are the facts that a guest has shown that it had synced.
type claims struct {
	Synced, GrownAt [blocks.Disks]uint64
}

// entry is a write to a disk, or a flush.
type entry struct {
	disk   int
	offset int64
	length int64
	data   []byte // nil for zeros
	// isSynced is set for a write that is durable at once.
	isSynced bool
	// isFlush is set for a flush, which makes the first writes of the disk durable.
	isFlush bool
	first   int
	// shown has the claims of the guest until this write, the ones made with it included.
	shown claims
}

// record has all writes and flushes of the disks of a machine from a moment on, in order.
type record struct {
	paths [blocks.Disks]string

	mu      sync.Mutex
	base    [blocks.Disks][]byte // what the files had when a QEMU used them first
	writes  [blocks.Disks]int
	entries []entry
	start   claims // what the guest had shown before
	// booted has the last round that the guest had synced when the QEMU of a disk was started,
	// and lost describes the blocks that were missing then.
	booted [blocks.Disks]uint64
	lost   []string
	// left is how many entries there are until the power is cut, -1 for none. off is closed
	// then, and over once nothing waits for the disks any more.
	left      int
	off, over chan struct{}
	ends      sync.Once
}

// newRecord begins a record of files, which may not exist yet.
func newRecord(paths [blocks.Disks]string) *record {
	return &record{paths: paths, left: -1, off: make(chan struct{}), over: make(chan struct{})}
}

// shown returns what the guest has shown so far.
func (r *record) shown() claims {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shownLocked()
}

func (r *record) shownLocked() claims {
	if len(r.entries) == 0 {
		return r.start
	}
	return r.entries[len(r.entries)-1].shown
}

// len returns how many entries there are.
func (r *record) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.entries)
}

// lostRounds returns what guests did not find when they booted.
func (r *record) lostRounds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lost)
}

// cutAfter cuts the power after so many more entries.
func (r *record) cutAfter(entries int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = entries
}

// cutNow cuts the power if it is not cut yet.
func (r *record) cutNow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left != 0 {
		r.left = 0
		close(r.off)
	}
}

// end lets go of who waits for disks without power.
func (r *record) end() { r.ends.Do(func() { close(r.over) }) }

// add adds an entry, and waits for ever without power.
func (r *record) add(e entry) error {
	r.mu.Lock()
	if r.left == 0 {
		r.mu.Unlock()
		<-r.over
		return errPowerCut
	}
	defer r.mu.Unlock()
	e.shown = r.shownLocked()
	r.learn(&e)
	r.entries = append(r.entries, e)
	if !e.isFlush {
		r.writes[e.disk]++
	}
	if r.left > 0 {
		if r.left--; r.left == 0 {
			close(r.off)
		}
	}
	return nil
}

// learn reads the blocks of a guest in a write.
func (r *record) learn(e *entry) {
	for at := 0; at+blocks.Size <= len(e.data); at += sector {
		b, ok := blocks.Decode(e.data[at:])
		if !ok || b.Disk >= blocks.Disks {
			continue
		}
		for n, count := range b.Synced {
			e.shown.Synced[n] = max(e.shown.Synced[n], count)
		}
		e.shown.GrownAt[b.Disk] = b.GrownAt
		if before := r.booted[b.Disk]; b.From < before {
			r.lost = append(r.lost, fmt.Sprintf("the guest found %d rounds on disk %d when it booted, and had synced %d", b.From, b.Disk, before))
		}
	}
}

// session is the use of a disk by one QEMU.
type session struct {
	*os.File

	record *record
	disk   int
	before int // writes of earlier sessions
	// ignoresFlushes is set if flushes reach no disk.
	ignoresFlushes bool
}

// open opens a disk for a QEMU.
func (r *record) open(disk int, ignoresFlushes bool) (*session, error) {
	f, err := os.OpenFile(r.paths[disk], os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.base[disk] == nil {
		if r.base[disk], err = os.ReadFile(f.Name()); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	r.booted[disk] = r.shownLocked().Synced[disk]
	return &session{File: f, record: r, disk: disk, before: r.writes[disk], ignoresFlushes: ignoresFlushes}, nil
}

// ReadAt implements device. There are zeros after the end of the file.
func (s *session) ReadAt(data []byte, offset int64) (int, error) {
	n, err := s.File.ReadAt(data, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Write implements device.
func (s *session) Write(data []byte, offset, length int64, isSynced bool) error {
	if err := s.record.add(entry{disk: s.disk, offset: offset, length: length, data: data, isSynced: isSynced}); err != nil {
		return err
	}
	if data == nil {
		data = make([]byte, length)
	}
	_, err := s.WriteAt(data, offset)
	return err
}

// Flush implements device.
func (s *session) Flush(written int) error {
	if s.ignoresFlushes {
		return nil
	}
	return s.record.add(entry{disk: s.disk, isFlush: true, first: s.before + written})
}

// state is a possible state of a disk after a power cut.
type state struct {
	disks [blocks.Disks][]byte
	shown claims
	text  string
}

// choice decides about a write of so many sectors that was not durable: it returns whether a
// sector of it is there.
type choice func(sectors int) (isKept func(sector int) bool)

func keepAll(int) func(int) bool  { return func(int) bool { return true } }
func keepNone(int) func(int) bool { return func(int) bool { return false } }

// keepByChance loses half of the writes and tears a quarter of them. Each sector of a torn one
// is there or not: so a sector that was written twice may have either content, as if the writes
// had changed their order.
func keepByChance(random *rand.Rand) choice {
	return func(sectors int) func(int) bool {
		switch random.IntN(4) {
		case 0:
			return keepAll(sectors)
		case 1:
			return func(int) bool { return random.IntN(2) == 0 }
		}
		return keepNone(sectors)
	}
}

// stateAt returns what a power cut after n entries may leave.
func (r *record) stateAt(n int, choose choice) state {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := state{shown: r.start}
	var durable, seen [blocks.Disks]int
	for _, e := range r.entries[:n] {
		if e.isFlush {
			durable[e.disk] = max(durable[e.disk], e.first)
		}
		s.shown = e.shown
	}
	for disk, content := range r.base {
		s.disks[disk] = slices.Clone(content)
	}
	loose := 0
	for _, e := range r.entries[:n] {
		if e.isFlush {
			continue
		}
		isKept := keepAll(0)
		if seen[e.disk] >= durable[e.disk] && !e.isSynced {
			isKept = choose(int((e.length + sector - 1) / sector))
			loose++
		}
		seen[e.disk]++
		s.disks[e.disk] = e.write(s.disks[e.disk], isKept)
	}
	s.text = fmt.Sprintf("a power cut after %d writes and flushes, of which %d writes were not durable", n, loose)
	return s
}

// write writes the sectors of an entry that are kept to the content of a disk.
func (e entry) write(content []byte, isKept func(sector int) bool) []byte {
	for at := int64(0); at < e.length; at += sector {
		begin, end := e.offset+at, e.offset+min(at+sector, e.length)
		if !isKept(int(at/sector)) || e.data == nil && begin >= int64(len(content)) {
			continue // there are zeros after the end already
		}
		if missing := end - int64(len(content)); missing > 0 {
			content = append(content, make([]byte, missing)...)
		}
		if e.data == nil {
			clear(content[begin:end])
			continue
		}
		copy(content[begin:end], e.data[at:])
	}
	return content
}
