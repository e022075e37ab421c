// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// packBuffer is how many bytes are written at a time.
	packBuffer = 32 << 10
	// maxBuffered is the size up to which a whole file is read before its header is written. The header then has the
	// number of bytes that were read: files of /proc have the size 0, and other files grow or shrink meanwhile.
	maxBuffered = 1 << 20
)

// Pack writes a file or folder as a tar stream. All names begin with the last element of the path, even if that element is
// a link to the file or folder. Links in a folder are packed as links. Sockets, pipes and devices are not packed. A
// LeftOutError names files of a folder that could not be read; the stream is complete without them.
func Pack(to io.Writer, from string) error {
	name := filepath.Base(from)
	top, err := filepath.EvalSymlinks(from)
	if err == nil && !filepath.IsLocal(name) {
		err = fmt.Errorf("%q cannot be copied as a whole: name a file or folder in it", from)
	}
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(to, packBuffer)
	p := packer{archive: tar.NewWriter(buffered), top: top, name: name}
	if err := filepath.WalkDir(top, p.addFile); err != nil {
		return err
	}
	return errors.Join(p.archive.Close(), buffered.Flush(), p.left.err())
}

// packer packs the files of a tree.
type packer struct {
	archive *tar.Writer
	// top is the path of the tree, and name its name in the stream.
	top, name string
	left      LeftOutError
}

// readError means that a file could not be read, and that nothing of it has been written.
type readError struct{ error }

// addFile adds a file of the tree. A file that cannot be read is left out, unless it is the top itself.
func (p *packer) addFile(file string, entry fs.DirEntry, err error) error {
	rest, relErr := filepath.Rel(p.top, file)
	if relErr != nil {
		return relErr
	}
	if err == nil {
		err = p.addEntry(filepath.ToSlash(filepath.Join(p.name, rest)), file)
	} else {
		err = &readError{err}
	}
	unread, isUnread := errors.AsType[*readError](err)
	switch {
	case isUnread && file == p.top:
		return unread.error
	case isUnread:
		p.left.add(filepath.ToSlash(rest), withoutPath(unread.error))
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	return err
}

// addEntry adds a file to the stream as name.
func (p *packer) addEntry(name, file string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return &readError{err}
	}
	target := ""
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return p.addContent(name, file)
	case mode.IsDir():
	case mode.Type() == fs.ModeSymlink:
		if target, err = os.Readlink(file); err != nil {
			return &readError{err}
		}
	default:
		return nil
	}
	return p.addHeader(name, target, info, 0)
}

func (p *packer) addHeader(name, target string, info fs.FileInfo, size int64) error {
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name, header.Size = name, size
	return p.archive.WriteHeader(header)
}

// addContent adds a regular file.
func (p *packer) addContent(name, file string) error {
	// A pipe may have replaced the file, and reads of some files of /proc would block.
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) //nolint:gosec // as asked for
	if err != nil {
		return &readError{err}
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("the file was replaced while it was read")
	}
	if err != nil {
		return &readError{err}
	}
	if info.Size() > maxBuffered {
		return p.addLarge(name, info, f)
	}
	var content bytes.Buffer
	size, err := io.Copy(&content, io.LimitReader(promptReader{f}, maxBuffered+1))
	if err == nil && size > maxBuffered {
		err = fmt.Errorf("the file has more than the %d bytes of its stated size", info.Size())
	}
	if err != nil {
		return &readError{err}
	}
	if err := p.addHeader(name, "", info, size); err != nil {
		return err
	}
	_, err = content.WriteTo(p.archive)
	return err
}

// promptReader reads a file, and fails if a read would block.
type promptReader struct{ *os.File }

func (r promptReader) Read(p []byte) (n int, err error) {
	conn, err := r.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	err = conn.Read(func(fd uintptr) bool {
		n, readErr = unix.Read(int(fd), p)
		return !errors.Is(readErr, unix.EINTR)
	})
	if err = errors.Join(err, readErr); err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// addLarge adds a large file with its current size. It fails if the file becomes shorter.
func (p *packer) addLarge(name string, info fs.FileInfo, f *os.File) error {
	if err := p.addHeader(name, "", info, info.Size()); err != nil {
		return err
	}
	if _, err := io.CopyN(p.archive, f, info.Size()); err != nil {
		return fmt.Errorf("%s has become shorter while it was read: %w", f.Name(), err)
	}
	return nil
}
