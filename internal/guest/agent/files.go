// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/guest/wire"
)

// readFiles writes a file or folder as a tar stream.
func (a *Agent) readFiles(path string, out io.Writer) error {
	return files.Pack(dataWriter{out}, a.pathOf(path))
}

// pathOf returns a path of the guest. One that is not absolute begins in the entrypoint's folder.
func (a *Agent) pathOf(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return a.Base.Dir + "/" + path
}

// dataWriter writes frames of data.
type dataWriter struct{ out io.Writer }

func (w dataWriter) Write(p []byte) (written int, err error) {
	for len(p) > written {
		n := min(len(p)-written, wire.MaxData)
		if err := wire.WriteFrame(w.out, wire.FrameData, p[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// dataReader reads frames of data until their end.
type dataReader struct {
	frames *wire.Reader
	left   []byte
	err    error
}

func (r *dataReader) Read(p []byte) (int, error) {
	for len(r.left) == 0 && r.err == nil {
		kind, payload, err := r.frames.Next()
		switch {
		case err != nil:
			r.err = fmt.Errorf("the files have not come as a whole: %w", errors.Join(err, io.ErrUnexpectedEOF))
		case kind == wire.FrameEnd:
			r.err = io.EOF
		case kind != wire.FrameData:
			r.err = wire.ErrFrame
		default:
			r.left = payload
		}
	}
	if len(r.left) == 0 {
		return 0, r.err
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// writeFiles makes the files of a tar stream. New ones belong to the entrypoint's user. The note for people says
// which files were overwritten.
func (a *Agent) writeFiles(path string, frames *wire.Reader) (note string, err error) {
	user, err := a.Lookup(a.Base.User)
	if err != nil {
		return "", err
	}
	to, err := files.DestinationOf(a.pathOf(path), "")
	if err != nil {
		return "", err
	}
	to.AllowAnyLinks = true // who sends the files may do everything in this guest
	to.Overwritten = &files.Overwritten{}
	to.SetOwner = func(root *os.Root, name string, mode fs.FileMode) error {
		err := root.Lchown(name, int(user.UID), int(user.GID))
		if err == nil && mode.Type() != fs.ModeSymlink {
			err = setMode(root, name, mode.Perm())
		}
		return err
	}
	err = files.Unpack(&dataReader{frames: frames}, to)
	return to.Overwritten.Describe(), err
}

// writeMount replaces the files of a folder.
func (a *Agent) writeMount(frames *wire.Reader) error {
	data := &dataReader{frames: frames}
	content, err := mounts.Parse(data)
	if err != nil {
		return err
	}
	return a.Mounts.Write(content)
}

// setMode sets the mode of a file or folder by a descriptor: Root.Chmod may need /proc/self, which in the guest is of a PID
// namespace without this process.
func setMode(root *os.Root, name string, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}
