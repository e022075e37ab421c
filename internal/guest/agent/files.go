// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/internal/guest/wire"
)

// readFiles writes a file or folder as a tar stream, with names that begin with its own. Links are
// not followed, except where the path itself goes through them.
func readFiles(path string, out io.Writer) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("the path is %.200q, want an absolute one", path)
	}
	path = filepath.Clean(path)
	buffered := bufio.NewWriterSize(dataWriter{out}, wire.MaxData)
	archive := tar.NewWriter(buffered)
	err := filepath.WalkDir(path, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return addFile(archive, filepath.Dir(path), file)
	})
	if err != nil {
		return err
	}
	return errors.Join(archive.Close(), buffered.Flush())
}

// addFile adds a file by the name that it has from base on. Sockets cannot be copied.
func addFile(archive *tar.Writer, base, path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket != 0 {
		return err
	}
	target := ""
	if info.Mode()&os.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	if header.Name, err = filepath.Rel(base, path); err != nil {
		return err
	}
	if err := archive.WriteHeader(header); err != nil || header.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(path) //nolint:gosec // as asked for
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := io.CopyN(archive, f, header.Size); err != nil {
		return fmt.Errorf("%s has become shorter while it was read: %w", path, err)
	}
	return nil
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

// writeFiles unpacks a tar stream into a folder. What it makes belongs to the entrypoint's user.
// No link leads out of the folder.
func (a *Agent) writeFiles(path string, frames *wire.Reader) error {
	user, err := a.Lookup(a.Base.User)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	in := &dataReader{frames: frames}
	for archive := tar.NewReader(in); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in) // the padding behind the archive's end
			return err
		}
		if err == nil {
			err = unpack(root, header, archive, user)
		}
		if err != nil {
			return err
		}
	}
}

// unpack makes what an entry describes, in place of a file of its name.
func unpack(root *os.Root, header *tar.Header, content io.Reader, user users.User) error {
	name, mode := filepath.Clean(header.Name), header.FileInfo().Mode()
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has the name %.200q, which leads out of its folder", header.Name)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.IsDir() {
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	var err error
	switch header.Typeflag {
	case tar.TypeDir:
		if err = root.Mkdir(name, 0o755); errors.Is(err, fs.ErrExist) {
			return nil // it keeps its owner and mode
		}
	case tar.TypeReg:
		err = writeContent(root, name, content)
	case tar.TypeSymlink:
		if err = root.Symlink(header.Linkname, name); err == nil {
			return root.Lchown(name, int(user.UID), int(user.GID))
		}
	case tar.TypeLink:
		return root.Link(filepath.Clean(header.Linkname), name)
	default:
		err = fmt.Errorf("the archive has %.200q, which is neither file, folder nor link", header.Name)
	}
	if err != nil {
		return err
	}
	return errors.Join(root.Chown(name, int(user.UID), int(user.GID)), root.Chmod(name, mode.Perm()), root.Chtimes(name, header.ModTime, header.ModTime))
}

func writeContent(root *os.Root, name string, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
