// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program pack writes a folder as an archive that Linux accepts as its initramfs
// ("newc" cpio, gzipped). It replaces cpio, which few machines have.
//
//	go run ./hack/guest/pack DIR >initrd
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pack DIR >initrd")
		os.Exit(2)
	}
	if err := packFolder(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func packFolder(out io.Writer, dir string) error {
	compressed, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	a := &archive{out: compressed}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error { //nolint:gosec // the caller's
		if err != nil || path == dir {
			return err
		}
		return a.addFile(dir, path, entry)
	})
	return errors.Join(err, a.writeEntry("TRAILER!!!", 0, nil), compressed.Close())
}

type archive struct {
	out   io.Writer
	inode int
}

const folder, file = 0o040755, 0o100755

func (a *archive) addFile(dir, path string, entry fs.DirEntry) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	if entry.IsDir() {
		return a.writeEntry(name, folder, nil)
	}
	content, err := os.ReadFile(path) //nolint:gosec // the caller's
	if err != nil {
		return err
	}
	return a.writeEntry(name, file, content)
}

// writeEntry writes a header, the name and the content, each padded to 4 bytes.
func (a *archive) writeEntry(name string, mode int, content []byte) error {
	a.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	text := append([]byte(header), name...)
	text = append(text, make([]byte, 4-len(text)%4)...)
	text = append(text, content...)
	text = append(text, make([]byte, (4-len(content)%4)%4)...)
	_, err := a.out.Write(text)
	return err
}
