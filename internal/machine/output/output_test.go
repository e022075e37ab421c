// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs/bugstest"
)

// machine has the files of a machine's output, as QEMU, its supervisor and readers have them.
type machine struct {
	t       *testing.T
	dir     string
	qemu    []*os.File
	begin   output.Positions
	bounded []*output.Bounded
}

func newMachine(t *testing.T, most int64) *machine {
	t.Helper()
	return newMachineIn(t, t.TempDir(), most)
}

func newMachineIn(t *testing.T, dir string, most int64) *machine {
	t.Helper()
	m := &machine{t: t, dir: dir}
	var err error
	m.qemu, m.begin, err = output.Create(m.path)
	assert.NoError(t, err)
	for _, name := range output.FileNames {
		f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
		assert.NoError(t, err)
		m.bounded = append(m.bounded, &output.Bounded{File: f, Most: most})
		t.Cleanup(func() { _ = f.Close() })
	}
	t.Cleanup(func() { _ = errors.Join(m.qemu[0].Close(), m.qemu[1].Close()) })
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// print appends numbered lines to a stream, and returns the number of the next.
func (m *machine) print(stream, from, lines int) int {
	m.t.Helper()
	var text bytes.Buffer
	for n := range lines {
		fmt.Fprintf(&text, "line %09d\n", from+n)
	}
	assert.NoError(m.t, assert.ErrorOf(m.qemu[stream].Write(text.Bytes())))
	return from + lines
}

func (m *machine) bound() {
	m.t.Helper()
	for _, b := range m.bounded {
		assert.NoError(m.t, assert.ErrorOf(b.Bound()))
	}
}

func (m *machine) open(ctx context.Context, o output.Options) *output.Reader {
	m.t.Helper()
	r, err := output.Open(ctx, m.path, o)
	assert.NoError(m.t, err)
	m.t.Cleanup(func() { _ = r.Close() })
	return r
}

// read reads so many bytes of both streams, fewer at their end, and returns what was lost.
func read(r *output.Reader, most int) (text [2]string, lost output.Positions, err error) {
	buffer := make([]byte, 32<<10)
	for most > 0 {
		n, isStderr, err := r.ReadStream(buffer[:min(len(buffer), most)])
		loss, isLoss := errors.AsType[*terminal.LostOutputError](err)
		switch {
		case isLoss:
			lost[0], lost[1] = lost[0]+loss.Stdout, lost[1]+loss.Stderr
		case err != nil:
			return text, lost, err
		case isStderr:
			text[1] += string(buffer[:n])
		default:
			text[0] += string(buffer[:n])
		}
		most -= n
	}
	return text, lost, nil
}

// stdoutRoom returns how much room the file of standard output takes.
func (m *machine) stdoutRoom() int64 {
	m.t.Helper()
	var info unix.Stat_t
	assert.NoError(m.t, unix.Stat(m.path(output.FileNames[output.Stdout]), &info))
	return 512 * info.Blocks
}

// TestSlowReaderLearnsOfItsLoss checks that a reader gets all that was printed, or how much it has lost, and that the room
// of the output is bounded.
func TestSlowReaderLearnsOfItsLoss(t *testing.T) {
	t.Parallel()
	const most = 256 << 10
	m := newMachine(t, most)
	over := false
	r := m.open(t.Context(), output.Options{FailsOnLoss: true, IsOver: func() (bool, *output.Positions, error) { return over, nil, nil }})
	var got strings.Builder
	var lost int64
	line := 0
	take := func(bytes int) {
		text, missed, err := read(r, bytes)
		assert.True(t, err == nil || errors.Is(err, io.EOF), "reading fails: %v", err)
		got.WriteString(text[0])
		lost += missed[0]
	}
	for range 10 {
		line = m.print(output.Stdout, line, 50_000) // 750 KB, of which 200 KB are read
		m.bound()
		take(200_000)
	}
	over = true
	take(1 << 30)
	assert.True(t, int64(got.Len())+lost == int64(15*line), "of %d bytes it got %d and lost %d", 15*line, got.Len(), lost)
	assert.True(t, lost > 0, "nothing was lost")
	assert.True(t, !strings.Contains(got.String(), "\x00"), "it got zeros")
	assert.True(t, strings.HasSuffix(got.String(), fmt.Sprintf("line %09d\n", line-1)), "the end is %q", got.String()[got.Len()-30:])
	const slack = 5 << 20 // what was taken before it is needed
	assert.True(t, m.stdoutRoom() <= most+slack, "it takes %d bytes", m.stdoutRoom())
}

// TestFastReaderGetsAll checks that a reader which keeps up gets both streams, each byte once, whatever the bytes are.
func TestFastReaderGetsAll(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 128<<10)
	r := m.open(t.Context(), output.Options{FailsOnLoss: true, IsOver: func() (bool, *output.Positions, error) { return false, nil, nil }})
	part := [2]string{strings.Repeat("\x00\xff\n", 20_000), strings.Repeat("no newline", 7_000)}
	for round := range 20 {
		for stream, text := range part {
			assert.NoError(t, assert.ErrorOf(m.qemu[stream].WriteString(text)))
		}
		m.bound()
		got, lost, err := read(r, len(part[0])+len(part[1]))
		assert.True(t, err == nil && lost == output.Positions{} && got == part, "round %d: it got %d and %d bytes, and lost %v, %v", round, len(got[0]), len(got[1]), lost, err)
	}
}

// TestReadsLastOutput checks that a reader gets what is printed just before nothing more can come.
func TestReadsLastOutput(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 1<<20)
	printOnce := sync.OnceFunc(func() { m.print(output.Stderr, 7, 1) })
	r := m.open(t.Context(), output.Options{IsOver: func() (bool, *output.Positions, error) {
		printOnce()
		return true, nil, nil
	}})
	got, _, err := read(r, 1000)
	assert.True(t, errors.Is(err, io.EOF) && got[1] == "line 000000007\n", "it reads %q, %v", got, err)
}

// TestEndsWithRun checks that a slow reader who follows a run gets all of its output, and none of the next run.
func TestEndsWithRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 1<<20)
	m.print(output.Stdout, 0, 10)
	var next *output.Positions
	r := m.open(t.Context(), output.Options{IsOver: func() (bool, *output.Positions, error) { return next != nil, next, nil }})
	first, _, err := read(r, 5*15)
	assert.NoError(t, err)
	m.print(output.Stderr, 10, 1)
	files, begin, err := output.Create(m.path)
	assert.NoError(t, errors.Join(err, files[0].Close(), files[1].Close()))
	next = &begin
	m.print(output.Stdout, 0, 3)
	m.print(output.Stderr, 0, 3)
	rest, _, err := read(r, 1<<20)
	assert.True(t, errors.Is(err, io.EOF) && len(first[0])+len(rest[0]) == 10*15 && rest[1] == "line 000000010\n", "it reads %q, then %q, %v", first, rest, err)
}

// TestSeededBugs checks that the tests of this package find the bugs of its files.
func TestSeededBugs(t *testing.T) {
	t.Parallel()
	bugstest.Check(t, "internal/machine/output", nil, "-test.timeout=1m")
}

// TestReadsOneRun checks that a run's output begins where it was when the run was started, and that the log begins with
// the oldest output that is kept, which is not reported as a loss.
func TestReadsOneRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 128<<10)
	m.print(output.Stdout, 0, 3)
	files, second, err := output.Create(m.path)
	assert.NoError(t, errors.Join(err, files[0].Close(), files[1].Close()))
	m.print(output.Stderr, 3, 2)
	for name, c := range map[string]struct {
		o    output.Options
		want [2]string
	}{
		"all":      {output.Options{}, [2]string{"line 000000000\nline 000000001\nline 000000002\n", "line 000000003\nline 000000004\n"}},
		"previous": {output.Options{To: &second}, [2]string{"line 000000000\nline 000000001\nline 000000002\n", ""}},
		"current":  {output.Options{From: second}, [2]string{"", "line 000000003\nline 000000004\n"}},
		"tail":     {output.Options{TailLines: new(int64(1))}, [2]string{"line 000000002\n", "line 000000004\n"}},
		"behind":   {output.Options{From: output.Positions{100, 100}}, [2]string{}},
	} {
		got, lost, err := read(m.open(t.Context(), c.o), 1<<20)
		assert.True(t, errors.Is(err, io.EOF) && got == c.want && lost == output.Positions{}, "%s: it reads %q, %v, %v", name, got, lost, err)
	}
	m.print(output.Stdout, 5, 50_000)
	m.bound()
	got, lost, err := read(m.open(t.Context(), output.Options{From: second}), 1<<20)
	assert.True(t, errors.Is(err, io.EOF) && lost == output.Positions{} && len(got[0]) >= 128<<10 && !strings.Contains(got[0], "\x00"),
		"what is kept has %d bytes, lost are %v, %v", len(got[0]), lost, err)
	got, lost, err = read(m.open(t.Context(), output.Options{From: second, FailsOnLoss: true}), 1<<20)
	assert.True(t, errors.Is(err, io.EOF) && int64(len(got[0]))+lost[0] == 50_000*15, "it got %d bytes and lost %v, %v", len(got[0]), lost, err)
}

// TestFullDisk checks that new output finds room on a full disk, which old output makes.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("drover-test", dir, "tmpfs", 0, "size=24M"); err != nil {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	m := newMachineIn(t, dir, 50<<20)
	line := m.print(output.Stdout, 0, 400_000) // 6 MB
	m.bound()
	_ = os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 32<<20), 0o600) // as much of it as there is room for
	for range 20 {
		line = m.print(output.Stdout, line, 100_000)
		m.print(output.Stderr, 0, 100)
		m.bound()
	}
	got, _, err := read(m.open(t.Context(), output.Options{}), 1<<30)
	assert.True(t, errors.Is(err, io.EOF) && len(got[0]) >= 64<<10 && strings.HasSuffix(got[0], fmt.Sprintf("line %09d\n", line-1)), "kept are %d bytes, %v", len(got[0]), err)
	assert.Equal(t, "the other stream has", len(got[1]), 20*100*15)
}

// TestShortenedFileIsBounded checks that a file is bounded again after QEMU, which a guest may have taken over, has cut it.
func TestShortenedFileIsBounded(t *testing.T) {
	t.Parallel()
	const most = 256 << 10
	m := newMachine(t, most)
	m.print(output.Stdout, 0, 500_000) // 7.5 MB
	m.bound()
	assert.NoError(t, m.qemu[output.Stdout].Truncate(0))
	m.bound()
	m.print(output.Stdout, 0, 490_000)
	m.bound()
	const slack = 5 << 20 // what was taken before it is needed
	assert.True(t, m.stdoutRoom() <= most+slack, "it takes %d bytes", m.stdoutRoom())
}

// TestHoldsGuest checks that a reader which is far behind holds the guest back until it has caught up, or is closed.
func TestHoldsGuest(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 1<<20)
	begun, ended := make(chan struct{}), make(chan struct{})
	r := m.open(t.Context(), output.Options{FailsOnLoss: true, IsOver: func() (bool, *output.Positions, error) { return false, nil, nil }, HoldAfter: 100_000, Hold: func(ctx context.Context) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
	}})
	m.print(output.Stderr, 0, 20_000)
	assert.Receive(t, "the guest is held", begun)
	_, _, err := read(r, 299_000)
	assert.NoError(t, err)
	assert.Receive(t, "the guest goes on", ended)
	m.print(output.Stdout, 0, 20_000)
	assert.Receive(t, "the guest is held again", begun)
	assert.NoError(t, r.Close())
	assert.Receive(t, "the guest goes on once the reader has left", ended)
}

// TestFindTail checks where the last lines begin, also across blocks.
func TestFindTail(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70<<10) + "\n"
	for name, c := range map[string]struct {
		text  string
		lines int64
		want  string
	}{
		"none":         {"a\nb\n", 0, ""},
		"one":          {"a\nb\n", 1, "b\n"},
		"open":         {"a\nb", 1, "b"},
		"two":          {"a\nb\nc\n", 2, "b\nc\n"},
		"empty ones":   {"a\n\n\n", 2, "\n\n"},
		"all":          {"a\nb\n", 2, "a\nb\n"},
		"more":         {"a\nb\n", 9, "a\nb\n"},
		"of nothing":   {"", 1, ""},
		"across block": {"a\n" + long + "b\n", 2, long + "b\n"},
		"the largest":  {"a\n", 1<<63 - 1, "a\n"},
	} {
		at, err := output.FindTail(strings.NewReader(c.text), 0, int64(len(c.text)), c.lines)
		assert.True(t, err == nil && c.text[at:] == c.want, "%s: got %d, %v", name, at, err)
	}
	at, err := output.FindTail(strings.NewReader("a"), 0, 100, 1)
	assert.True(t, at == 0 && err == nil, "of a log that is cut meanwhile: %d, %v", at, err)
}
