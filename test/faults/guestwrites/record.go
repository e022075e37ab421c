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

// sector is the number of bytes that a disk writes completely or not at all.
const sector = 512

// errPowerCut means that the power of the disk is cut.
var errPowerCut = errors.New("the power is cut")

// claims are a guest's records, in its blocks, of the blocks that it had synced.
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
	// shown has the claims of the guest up to and including this write.
	shown claims
}

// record has all writes and flushes of a machine's disks in order.
type record struct {
	paths [blocks.Disks]string

	mu      sync.Mutex
	base    [blocks.Disks][]byte // the content of the files when a QEMU first opened them
	writes  [blocks.Disks]int
	entries []entry
	start   claims // of the guest before the first entry
	// booted has the last synced round of each disk when its QEMU was started, and lost
	// describes the blocks that the guest did not find then.
	booted [blocks.Disks]uint64
	lost   []string
	// left is the number of entries until the power is cut, or -1 without a cut. off is closed
	// at the cut, and over by end.
	left      int
	off, over chan struct{}
	ends      sync.Once
}

// newRecord returns an empty record of disks, whose files may not exist yet.
func newRecord(paths [blocks.Disks]string) *record {
	return &record{paths: paths, left: -1, off: make(chan struct{}), over: make(chan struct{})}
}

// shown returns the claims of the guest so far.
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

// len returns the number of entries.
func (r *record) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.entries)
}

// lostRounds describes the blocks that guests did not find when they booted.
func (r *record) lostRounds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lost)
}

// cutAfter cuts the power after a number of further entries.
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

// end ends the calls that wait because there is no power.
func (r *record) end() { r.ends.Do(func() { close(r.over) }) }

// add adds an entry. Without power it waits for end.
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

// learn reads the claims in the blocks of a write.
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
			r.lost = append(r.lost, fmt.Sprintf("the guest found %d rounds on disk %d when it booted, but had synced %d", b.From, b.Disk, before))
		}
	}
}

// session is the use of a disk by one QEMU.
type session struct {
	*os.File

	record *record
	disk   int
	before int // writes of earlier sessions
	// ignoresFlushes is set if flushes do not make writes durable.
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

// choice decides about a write with a number of sectors that was not durable: isKept reports
// whether a sector is on the disk.
type choice func(sectors int) (isKept func(sector int) bool)

func keepAll(int) func(int) bool  { return func(int) bool { return true } }
func keepNone(int) func(int) bool { return func(int) bool { return false } }

// keepByChance loses half of the writes and tears a quarter of them. A torn write keeps random
// sectors. So a sector that was written twice may have either content, as if the disk had changed
// the order of the writes.
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

// stateAt returns a possible state after a power cut after n entries.
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

// write writes the kept sectors of an entry to the content of a disk.
func (e entry) write(content []byte, isKept func(sector int) bool) []byte {
	for at := int64(0); at < e.length; at += sector {
		begin, end := e.offset+at, e.offset+min(at+sector, e.length)
		if !isKept(int(at/sector)) || e.data == nil && begin >= int64(len(content)) {
			continue // the content after the end reads as zeros
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
