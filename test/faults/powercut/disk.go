// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"os"
	"slices"
	"strings"
)

// fileID identifies a file or folder independently of its names. 0 means no file.
type fileID int

// rootID is the folder that is recorded.
const rootID fileID = 1

// opKind is a kind of change.
type opKind int

const (
	opWrite    opKind = iota // a write of data
	opTruncate               // a change of the size
	opMode                   // a change of the mode
	opEntries                // an atomic change of names
	opSync                   // a sync of a file's data, or of a folder's names
	opMark                   // a mark in the workload, which changes nothing
)

// op is a change, or a sync that makes earlier changes durable.
type op struct {
	kind opKind
	// file is the file or folder that is changed or synced.
	file    fileID
	offset  int64       // of a write
	size    int64       // after a truncation
	mode    os.FileMode // after a change of it
	data    []byte
	entries []entry
	// isMkdir says that the entry is a new folder. target is set if it is a new symbolic link.
	isMkdir bool
	target  string
	// text describes the operation in words, or is the name of a mark.
	text string
}

// entry is a name in a folder, and its new file, or 0 if the name is removed.
type entry struct {
	folder fileID
	name   string
	file   fileID
}

// isDurableBy reports whether a later sync makes the change durable.
func (o op) isDurableBy(sync op) bool {
	switch o.kind {
	case opWrite, opTruncate, opMode:
		return sync.file == o.file
	case opEntries:
		for _, e := range o.entries {
			if e.folder == sync.file {
				return true
			}
		}
	default: // opSync and opMark change nothing
	}
	return false
}

// disk is the content of a file system.
type disk struct {
	folders map[fileID]map[string]fileID
	files   map[fileID]fileContent
}

// fileContent is the content of a file: data, and zeros after it up to its size.
type fileContent struct {
	data []byte
	size int64
	mode os.FileMode // 0 means the default, 0600; ModeSymlink a link with the target in data
}

// bytes returns the whole content.
func (c fileContent) bytes() []byte {
	return append(slices.Clip(c.data), make([]byte, c.size-int64(len(c.data)))...)
}

func newDisk() *disk {
	return &disk{folders: map[fileID]map[string]fileID{rootID: {}}, files: map[fileID]fileContent{}}
}

// apply makes a change.
func (d *disk) apply(o op) {
	switch o.kind {
	case opWrite:
		d.write(o)
	case opTruncate:
		d.resize(o.file, o.size)
	case opMode:
		c := d.files[o.file]
		c.mode = o.mode
		d.files[o.file] = c
	case opEntries:
		for _, e := range o.entries {
			d.setEntry(e)
			if o.target != "" {
				d.files[e.file] = fileContent{[]byte(o.target), int64(len(o.target)), os.ModeSymlink}
			}
		}
	default: // opSync and opMark change nothing
	}
}

func (d *disk) write(o op) {
	c, end := d.files[o.file], o.offset+int64(len(o.data))
	if missing := end - int64(len(c.data)); missing > 0 {
		c.data = append(c.data, make([]byte, missing)...)
	}
	copy(c.data[o.offset:], o.data)
	c.size = max(c.size, end)
	d.files[o.file] = c
}

func (d *disk) resize(f fileID, size int64) {
	c := d.files[f]
	c.data, c.size = c.data[:min(int64(len(c.data)), size)], size
	d.files[f] = c
}

func (d *disk) setEntry(e entry) {
	folder := d.folders[e.folder]
	if e.file == 0 {
		delete(folder, e.name)
		return
	}
	folder[e.name] = e.file
}

// findFile returns the file with a path below the root, or 0.
func (d *disk) findFile(path string) fileID {
	at := rootID
	for name := range strings.SplitSeq(path, "/") {
		if name != "" && name != "." {
			at = d.folders[at][name]
		}
	}
	return at
}

// tree returns the contents of files by their paths. It includes folders, whose paths end with a slash.
func (d *disk) tree() map[string]fileContent {
	all := map[string]fileContent{}
	var add func(folder fileID, path string)
	add = func(folder fileID, path string) {
		all[path] = fileContent{}
		for name, file := range d.folders[folder] {
			if _, isFolder := d.folders[file]; isFolder {
				add(file, path+name+"/")
			} else {
				all[path+name] = d.files[file]
			}
		}
	}
	add(rootID, "/")
	return all
}
