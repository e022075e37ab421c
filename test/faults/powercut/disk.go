// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import "strings"

// fileID identifies a file or folder, whatever its names. 0 is none.
type fileID int

// rootID is the folder that is recorded.
const rootID fileID = 1

// opKind is a kind of change.
type opKind int

const (
	opWrite    opKind = iota // of data
	opTruncate               // to a size
	opEntries                // of names, all or none of them
	opSync                   // of a file's data, or of a folder's names
	opMark                   // no change, but a place in the workload
)

// op is one change, or what makes earlier ones durable.
type op struct {
	kind opKind
	// file is the file that is written to or truncated, or what is synced.
	file    fileID
	offset  int64 // or size
	data    []byte
	entries []entry
	// isMkdir says that the entry is of a new folder.
	isMkdir bool
	// text describes it for people, or is the name of a mark.
	text string
}

// entry is a name in a folder that gets another file, or none.
type entry struct {
	folder fileID
	name   string
	file   fileID
}

// isDurableBy reports whether a later sync makes the change durable.
func (o op) isDurableBy(sync op) bool {
	switch o.kind {
	case opWrite, opTruncate:
		return sync.file == o.file
	case opEntries:
		for _, e := range o.entries {
			if e.folder == sync.file {
				return true
			}
		}
	case opSync, opMark:
	}
	return false
}

// disk is the content of a file system.
type disk struct {
	folders map[fileID]map[string]fileID
	files   map[fileID][]byte
}

func newDisk() *disk {
	return &disk{folders: map[fileID]map[string]fileID{rootID: {}}, files: map[fileID][]byte{}}
}

// apply makes a change.
func (d *disk) apply(o op) {
	switch o.kind {
	case opWrite:
		end := o.offset + int64(len(o.data))
		d.resize(o.file, max(end, int64(len(d.files[o.file]))))
		copy(d.files[o.file][o.offset:], o.data)
	case opTruncate:
		d.resize(o.file, o.offset)
	case opEntries:
		for _, e := range o.entries {
			d.setEntry(e)
		}
	case opSync, opMark:
	}
}

func (d *disk) resize(f fileID, size int64) {
	have := d.files[f]
	if size <= int64(len(have)) {
		d.files[f] = have[:size]
		return
	}
	d.files[f] = append(have, make([]byte, size-int64(len(have)))...)
}

func (d *disk) setEntry(e entry) {
	folder := d.folders[e.folder]
	if e.file == 0 {
		delete(folder, e.name)
		return
	}
	folder[e.name] = e.file
}

// find returns the file of a path below the root, or 0.
func (d *disk) find(path string) fileID {
	at := rootID
	for name := range strings.SplitSeq(path, "/") {
		if name != "" && name != "." {
			at = d.folders[at][name]
		}
	}
	return at
}

// tree returns the contents of files by their paths, and folders, whose paths end with a slash.
func (d *disk) tree() map[string]string {
	all := map[string]string{}
	var add func(folder fileID, path string)
	add = func(folder fileID, path string) {
		all[path] = ""
		for name, file := range d.folders[folder] {
			if _, isFolder := d.folders[file]; isFolder {
				add(file, path+name+"/")
			} else {
				all[path+name] = string(d.files[file])
			}
		}
	}
	add(rootID, "/")
	return all
}
