// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package initramfs packs what the kernel of a container image's machine starts with: one program, the
// modules that it loads, and two device nodes. Start with Write. The same input gives the same bytes.
package initramfs

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// File is a file of the initramfs.
type File struct {
	// Name is relative, such as "modules/erofs.ko". Its folder is made.
	Name    string
	Content []byte
}

// Kinds and modes of entries, as in a file's mode.
const (
	modeFolder  = 0o040755
	modeFile    = 0o100644
	modeProgram = 0o100755
	modeDevice  = 0o020600
)

// Write writes the archive ("newc" cpio, which the kernel unpacks), without compression. The program
// becomes /init. Go programs end at their start where descriptors 0 to 2 are closed and there is no
// /dev/null, so that is in the archive beside /dev/console.
func Write(w io.Writer, program []byte, files []File) error {
	a := &archive{out: w}
	a.add(entry{name: "dev", mode: modeFolder})
	a.add(entry{name: "dev/console", mode: modeDevice, major: 5, minor: 1})
	a.add(entry{name: "dev/null", mode: modeDevice, major: 1, minor: 3})
	a.add(entry{name: "init", mode: modeProgram, content: program})
	folders := map[string]bool{".": true}
	for _, f := range files {
		if !isLocal(f.Name) {
			return fmt.Errorf("initramfs has the file %.80q, want a relative path", f.Name)
		}
		if dir := path.Dir(f.Name); !folders[dir] {
			folders[dir] = true
			a.add(entry{name: dir, mode: modeFolder})
		}
		a.add(entry{name: f.Name, mode: modeFile, content: f.Content})
	}
	a.add(entry{name: "TRAILER!!!"})
	return a.err
}

func isLocal(name string) bool {
	return name != "" && path.Clean(name) == name && !path.IsAbs(name) && !strings.HasPrefix(name, "..")
}

// archive writes entries until one fails.
type archive struct {
	out   io.Writer
	inode int
	err   error
}

type entry struct {
	name         string
	mode         int
	major, minor int
	content      []byte
}

// add writes a header, the name and the content, each padded to 4 bytes.
func (a *archive) add(e entry) {
	a.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, e.mode, 0, 0, 1, 0, len(e.content), 0, 0, e.major, e.minor, len(e.name)+1, 0)
	named := append([]byte(header), e.name...)
	named = append(named, make([]byte, 4-len(named)%4)...)
	for _, part := range [][]byte{named, e.content, make([]byte, (4-len(e.content)%4)%4)} {
		_, err := a.out.Write(part)
		a.err = errors.Join(a.err, err)
	}
}
