// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package converter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// machineProgram is drover-machine, which every user may execute.
var machineProgram string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "drover-test-")
	if err == nil {
		machineProgram = filepath.Join(dir, "drover-machine")
		err = errors.Join(os.Chmod(dir, 0o755), framework.BuildMachine(machineProgram), os.Chmod(machineProgram, 0o755))
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// newConverter returns a converter of a program that runs as the user of the test, unless another is named.
func newConverter(t *testing.T, program string, user *confine.User) Converter {
	t.Helper()
	f, err := os.Open(program)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return Converter{
		Program: func() (*os.File, error) { return f, nil },
		StartAs: func(start func(*confine.User) error) error { return start(user) },
	}
}

// ownUser returns a separate user for the program, nil if only root could give it one.
func ownUser() *confine.User {
	if os.Geteuid() != 0 {
		return nil
	}
	return &confine.User{ID: 2100065830, GroupID: 2100065830}
}

// newOutput returns a file as the store of images makes it: no other user can open it.
func newOutput(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "root"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// output returns a file as a conversion writes to it.
func output(f *os.File) erofs.File {
	return &diskspace.File{File: f, Disk: &diskspace.Disk{Dir: filepath.Dir(f.Name())}}
}

const maxSize = 64 << 20

func requestOf(layers ...[]byte) (rootfs.Request, rootfs.Open) {
	request := rootfs.Request{Seed: "test", MaxContent: maxSize, MaxSize: maxSize}
	for _, layer := range layers {
		request.Layers = append(request.Layers, int64(len(layer)))
	}
	return request, func(number int) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layers[number])), nil }
}

// TestConvert checks that the process makes the same as this one, and removes data as this one.
func TestConvert(t *testing.T) {
	t.Parallel()
	var layers [][]byte
	for k := range 3 {
		layers = append(layers, framework.TarOf(t, "usr/bin/app", bytes.Repeat([]byte{'a' + byte(k)}, 3<<20)))
	}
	request, open := requestOf(layers...)
	here, there := newOutput(t), newOutput(t)
	want, err := rootfs.ConvertHere(t.Context(), request, open, output(here))
	assert.NoError(t, err)
	got, err := newConverter(t, machineProgram, ownUser()).Convert(t.Context(), request, open, output(there))
	assert.NoError(t, err)
	assert.True(t, got == want && want.Reason == "", "got %+v, want %+v", got, want)
	a, b := framework.ReadFile(t, here.Name()), framework.ReadFile(t, there.Name())
	assert.True(t, a == b && len(a) == int(want.Size), "it has %d bytes, want %d", len(b), len(a))
}

// TestRefused checks that the process says why it has made nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 3<<20)
	for k := range noise {
		noise[k] = byte(k * k >> 8) //nolint:gosec // noise
	}
	for name, c := range map[string]struct {
		layer   []byte
		maxSize int64
		want    rootfs.Reason
	}{
		"odd":       {framework.TarOf(t, ".wh.", nil), maxSize, rootfs.ReasonContent},
		"noise":     {noise, maxSize, rootfs.ReasonContent},
		"too large": {framework.TarOf(t, "a", noise), 1 << 20, rootfs.ReasonOutput},
	} {
		request, open := requestOf(c.layer)
		request.MaxSize = c.maxSize
		out := newOutput(t)
		got, err := newConverter(t, machineProgram, ownUser()).Convert(t.Context(), request, open, output(out))
		assert.NoError(t, err)
		assert.True(t, got.Reason == c.want && got.Message != "", "%s: got %+v", name, got)
		info, err := out.Stat()
		assert.True(t, err == nil && info.Size() <= c.maxSize, "%s: the file has %d bytes, %v", name, info.Size(), err)
	}
}

// blocked is a layer that does not come before its context ends.
type blocked struct{ context.Context }

func (b blocked) Read([]byte) (int, error) {
	<-b.Done()
	return 0, b.Err()
}

func (blocked) Close() error { return nil }

// TestEnds checks that the process ends with its context and with a layer that cannot be read, and that the cause is
// returned.
func TestEnds(t *testing.T) {
	t.Parallel()
	c := newConverter(t, machineProgram, ownUser())
	request := rootfs.Request{Layers: []int64{100, 100}, MaxContent: maxSize, MaxSize: maxSize}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Convert(ctx, request, func(int) (io.ReadCloser, error) { cancel(); return blocked{ctx}, nil }, output(newOutput(t)))
	assert.ErrorIs(t, "Convert", err, context.Canceled)
	_, err = c.Convert(t.Context(), request, func(int) (io.ReadCloser, error) { return nil, io.ErrNoProgress }, output(newOutput(t)))
	assert.ErrorIs(t, "Convert", err, io.ErrNoProgress)
	ended, cancelled := context.WithCancel(t.Context())
	cancelled()
	_, err = c.Convert(ended, request, func(int) (io.ReadCloser, error) { return nil, ended.Err() }, output(newOutput(t)))
	assert.ErrorIs(t, "Convert", err, context.Canceled)
}

// TestNoProgram checks that a program which cannot be started, fails or says nothing is an error.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	script := filepath.Join(framework.PublicDir(t), "script")
	assert.NoError(t, os.WriteFile(script, []byte("no program"), 0o755))
	request, open := requestOf(framework.TarOf(t, "a", make([]byte, 1<<20)))
	_, err := newConverter(t, script, nil).Convert(t.Context(), request, open, output(newOutput(t)))
	assert.ErrorSays(t, "a text", err, "the conversion has failed: starting the process")
	_, err = Converter{Program: func() (*os.File, error) { return nil, io.ErrClosedPipe }}.Convert(t.Context(), request, open, output(newOutput(t)))
	assert.ErrorIs(t, "no program", err, io.ErrClosedPipe)
	for _, text := range []string{"", "{", "[]", `{"size": "x"}`} {
		assert.ErrorSays(t, text, assert.ErrorOf(parseResult([]byte(text))), "decoding the result")
	}
	assert.Equal(t, "it ended with", Main([]string{"-1"}), 1)
}

// attack starts a hostile program in the converter's place, and returns what came of each attack. The file that it is
// to write tells it what to do.
func attack(t *testing.T, user *confine.User, isBroken bool) map[string]string {
	t.Helper()
	program := filepath.Join(framework.PublicDir(t), "hostile")
	assert.NoError(t, errors.Join(framework.BuildProgram(program, "test/hostile"), os.Chmod(program, 0o755)))
	elsewhere := filepath.Join(t.TempDir(), "private")
	assert.NoError(t, os.Mkdir(elsewhere, 0o700))
	targets := map[string]any{
		"Disk": filepath.Join(elsewhere, "root.qcow2"), "Key": filepath.Join(elsewhere, "key"), "Own": filepath.Join(elsewhere, "own"),
		"Drover": os.Getpid(), "QEMU": os.Getppid(), "Other": os.Getppid(), "Handle": programFD, "Record": outputFD, "IsBroken": isBroken,
		"Port": framework.PortOf(framework.Listen(t, "tcp4", "127.0.0.1:0")),
	}
	for _, name := range []string{"Disk", "Key", "Own"} {
		assert.NoError(t, os.WriteFile(targets[name].(string), []byte("secret"), 0o600))
	}
	token, err := json.Marshal(targets)
	assert.NoError(t, err)
	text, err := json.Marshal(map[string]string{"Token": string(token)})
	assert.NoError(t, err)
	out := newOutput(t)
	_, err = out.Write(text)
	assert.NoError(t, err)
	_, err = out.Seek(0, io.SeekStart)
	assert.NoError(t, err)
	var printed bytes.Buffer
	cmd, err := newConverter(t, program, user).startProgram(t.Context(), streams{nil, io.Discard, &printed, out})
	assert.NoError(t, err)
	err = cmd.Wait()
	var results map[string]string
	assert.Require(t, json.Unmarshal(printed.Bytes(), &results) == nil, "it printed %q, %v", printed.String(), err)
	return results
}

// TestHostile runs a hostile program in the converter's place, and checks that it can do nothing to its host: neither
// one that an image has taken over, nor, except for harmless calls, one from its start.
func TestHostile(t *testing.T) {
	t.Parallel()
	if !confine.FiltersCalls() || confine.ABI() < 6 {
		t.Skip("this kernel does not prevent everything")
	}
	// The network of this host, and itself again: what an image takes over has neither.
	fromStart := map[string]bool{"itself": true, "memory": true}
	for name, isBroken := range map[string]bool{"from its start": false, "taken over": true} {
		for who, user := range map[string]*confine.User{"same user": nil, "own user": ownUser()} {
			t.Run(name+"/"+who, func(t *testing.T) {
				t.Parallel()
				if who == "own user" && user == nil {
					t.Skip("only root can start it as another user")
				}
				results := attack(t, user, isBroken)
				assert.True(t, len(results) >= 20, "tried was %v", results)
				for name, got := range results {
					if user == nil && name == "root" {
						continue // which it is, or may not become
					}
					may := !isBroken && fromStart[name]
					isSuccess := got == "succeeds"
					assert.True(t, isSuccess == may && (isSuccess || isDenied(got)), "%s: %q, want success: %v", name, got, may)
				}
			})
		}
	}
}

func isDenied(result string) bool {
	// No handle on a process is given, which could be used.
	for _, err := range []error{unix.EACCES, unix.EPERM, unix.EXDEV, unix.EISDIR, unix.EBADF} {
		if strings.HasSuffix(result, err.Error()) {
			return true
		}
	}
	return false
}
