// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guestwrites

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/hack/guest/blocks"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// newTestRecord returns a record of two empty files.
func newTestRecord(t *testing.T) *record {
	t.Helper()
	var paths [blocks.Disks]string
	for n := range paths {
		paths[n] = filepath.Join(t.TempDir(), diskName(n))
		assert.NoError(t, os.WriteFile(paths[n], nil, 0o600))
	}
	return newRecord(paths)
}

// TestServer checks that writes of qemu-io are recorded in order, are in the file, and are read
// back.
func TestServer(t *testing.T) {
	t.Parallel()
	r := newTestRecord(t)
	server, err := startNBDServer(filepath.Join(t.TempDir(), "qemu"), func(string) (device, error) { return r.open(0, false) })
	assert.NoError(t, err)
	listener := framework.Listen(t, "tcp4", "127.0.0.1:0")
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			server.add(conn)
		}
	}()
	out, err := exec.CommandContext(t.Context(), "qemu-io", "-f", "raw", "-t", "writeback",
		"-c", "write -P 1 0 64k", "-c", "flush", "-c", "write -P 2 4k 512", "-c", "write -f -P 3 8k 512", "-c", "discard 12k 4k", "-c", "write -z 16k 4k",
		"-c", "read -P 1 0 4k", "-c", "read -P 2 4k 512", "-c", "read -P 3 8k 512", "-c", "read -P 0 12k 8k", "-c", "read -P 0 1G 4k",
		"nbd://"+listener.Addr().String()+"/root").CombinedOutput()
	assert.Require(t, err == nil && !strings.Contains(string(out), "failed"), "qemu-io: %v\n%s", err, out)
	assert.NoError(t, server.close())
	content, err := os.ReadFile(r.paths[0])
	assert.NoError(t, err)
	all := r.stateAt(r.len(), keepAll)
	assert.True(t, bytes.Equal(all.disks[0], content), "the record differs from the file")
	durable := r.stateAt(r.len()-1, keepNone).disks[0] // qemu-io flushes when it ends
	want := bytes.Repeat([]byte{1}, 64<<10)
	copy(want[8<<10:], bytes.Repeat([]byte{3}, 512))
	assert.True(t, bytes.Equal(durable, want), "not exactly the writes before a flush, and with FUA, are durable")
}

// TestFlush checks that a flush covers the writes that were answered before it was sent, and that other
// writes may be lost, torn, and out of order.
func TestFlush(t *testing.T) {
	t.Parallel()
	r := newTestRecord(t)
	s, err := r.open(0, false)
	assert.NoError(t, err)
	write := func(letter string) {
		assert.NoError(t, s.Write([]byte(strings.Repeat(letter, 2*sector)), 0, 2*sector, false))
	}
	write("a")
	write("b")
	assert.NoError(t, s.Flush(1)) // sent when only the first write was answered
	seen := map[string]bool{}
	random := rand.New(rand.NewPCG(1, 0)) //nolint:gosec // no secret
	for range 100 {
		content := r.stateAt(3, keepByChance(random)).disks[0]
		seen[string([]byte{content[0], content[sector]})] = true
	}
	assert.True(t, len(seen) == 4 && seen["aa"] && seen["ab"] && seen["ba"] && seen["bb"], "the sectors were %v", seen)
	assert.NoError(t, s.Flush(2))
	assert.True(t, string(r.stateAt(4, keepNone).disks[0][:1]) == "b", "a flushed write is lost")
}

// TestNextSession checks that the numbering of writes continues when a machine is restarted.
func TestNextSession(t *testing.T) {
	t.Parallel()
	r := newTestRecord(t)
	for _, letter := range []string{"a", "b"} {
		s, err := r.open(1, false)
		assert.NoError(t, err)
		assert.NoError(t, s.Write([]byte(letter), 0, 1, false))
		assert.NoError(t, s.Flush(1))
	}
	assert.Equal(t, "the disk has", string(r.stateAt(4, keepNone).disks[1]), "b")
	assert.Equal(t, "before the last flush it has", string(r.stateAt(3, keepNone).disks[1]), "a")
}

// TestPowerCut checks that no write happens after the power cut, and that the last write before it is kept.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	r := newTestRecord(t)
	s, err := r.open(0, false)
	assert.NoError(t, err)
	r.cutAfter(1)
	assert.NoError(t, s.Write([]byte("a"), 0, 1, false))
	<-r.off
	done := make(chan error)
	go func() { done <- s.Flush(1) }()
	r.end()
	if err := <-done; err != errPowerCut { //nolint:errorlint // itself
		t.Errorf("got %v", err)
	}
	n := r.len()
	assert.True(t, n == 1, "there are %d entries", n)
}

// writeRound writes the blocks of a round to a raw disk.
func writeRound(raw *os.File, b blocks.Block) (err error) {
	for area := range blocks.AreasOf(b.Count, b.GrownAt) {
		b.Area = uint32(area)
		_, writeErr := raw.WriteAt(b.Encode(), blocks.Place{Area: area, Count: b.Count}.Offset())
		err = errors.Join(err, writeErr)
	}
	return err
}

// writeZeros returns a function that writes zeros to a disk.
func writeZeros(size int, at int64) func(raw *os.File) error {
	return func(raw *os.File) error {
		_, err := raw.WriteAt(make([]byte, size), at)
		return err
	}
}

// TestCheck checks that lost, torn and old blocks are found, and that blocks of the next round are not reported.
func TestCheck(t *testing.T) {
	t.Parallel()
	const synced = 40
	for name, c := range map[string]struct {
		change func(raw *os.File) error
		wrong  bool
	}{
		"whole": {func(*os.File) error { return nil }, false},
		"lost":  {writeZeros(blocks.Size, blocks.Place{Area: 1, Count: synced}.Offset()), true},
		"torn":  {writeZeros(sector, blocks.Place{Area: 0, Count: synced - 1}.Offset()+8*sector), true},
		"old":   {func(raw *os.File) error { return writeRound(raw, blocks.Block{Count: synced - blocks.Slots}) }, true},
		"next round": {func(raw *os.File) error {
			return errors.Join(writeRound(raw, blocks.Block{Count: synced + 1, GrownAt: synced + 1}), writeZeros(blocks.Stride, blocks.Discarded(synced+1).Offset())(raw))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "disk")
			raw, err := os.Create(path + ".img")
			assert.NoError(t, err)
			assert.NoError(t, raw.Truncate(blocks.LargeSize))
			for count := range uint64(synced) {
				assert.NoError(t, writeRound(raw, blocks.Block{Count: count + 1}))
			}
			assert.NoError(t, c.change(raw))
			assert.NoError(t, raw.Close())
			out, err := exec.CommandContext(t.Context(), "qemu-img", "convert", "-f", "raw", "-O", "qcow2", path+".img", path).CombinedOutput()
			assert.Require(t, err == nil, "%v\n%s", err, out)
			content, err := os.ReadFile(path)
			assert.NoError(t, err)
			left := state{shown: claims{Synced: [blocks.Disks]uint64{synced}}, disks: [blocks.Disks][]byte{content}}
			err = left.check(t.Context(), t.TempDir())
			assert.True(t, errors.As(err, new(lostError)) == c.wrong && (err == nil || c.wrong), "got %v", err)
		})
	}
}
