// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
)

const (
	// diskFolder is where an image for machines has its disk, as container disks do.
	diskFolder = "disk"
	// maxEntries is how many entries of it are kept in mind, and maxName how long the
	// name of one may be, as that of a file: a small blob may hold millions.
	maxEntries = 1000
	maxName    = 255
)

// How a layer says that it hides what layers below have: a file of that name, or
// all that is in its folder.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// archive is the content of an image, of which the disk is read: layer by layer from
// the top, since one hides what those below have of the same name. Nothing is kept in
// mind of what is not in the disk's folder.
type archive struct {
	layers []v1.Layer // those below the one that is read
	layer  io.ReadCloser
	files  *tar.Reader
	depth  int // of that layer
	met    int // entries of the folder
	// hidden has, by name in the folder and "" for all of it, how deep the layer is
	// that hides it of those below.
	hidden map[string]int
}

// openArchive goes to the disk of an image.
func openArchive(image v1.Image) (*archive, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	a := &archive{layers: layers, hidden: map[string]int{}}
	a.enter(http.NoBody)
	if err := a.nextDisk(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *archive) Close() error { return a.layer.Close() }

// Read reads the disk. Whether what came is what the image's digests say, and that
// there is no other disk, shows at the end of the image alone, so the disk does not
// end before.
func (a *archive) Read(p []byte) (int, error) {
	n, err := a.files.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	err = a.nextDisk()
	switch {
	case err == nil:
		return n, fmt.Errorf("there is more than one file in /%s: it must hold one disk", diskFolder)
	case errors.Is(err, errNoDisk):
		return n, io.EOF
	}
	return n, err
}

var errNoDisk = fmt.Errorf("there is no disk in /%s of the image", diskFolder)

// nextDisk goes to the next disk. It is errNoDisk only if all of the image was
// read and is as it should be.
func (a *archive) nextDisk() error {
	for {
		entry, err := a.files.Next()
		if errors.Is(err, io.EOF) {
			if err := a.nextLayer(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if is, err := a.meet(entry); is || err != nil {
			return err
		}
	}
}

// nextLayer goes to the layer below. Whether this one is what its digest says shows
// after the end of its archive, which looks whole all the same.
func (a *archive) nextLayer() error {
	if _, err := io.Copy(io.Discard, a.layer); err != nil {
		return err
	}
	if err := a.layer.Close(); err != nil {
		return err
	}
	a.enter(http.NoBody)
	if len(a.layers) == 0 {
		return errNoDisk
	}
	last := len(a.layers) - 1
	content, err := a.layers[last].Uncompressed()
	if err != nil {
		return err
	}
	a.layers = a.layers[:last]
	a.enter(content)
	a.depth++
	return nil
}

func (a *archive) enter(content io.ReadCloser) { a.layer, a.files = content, tar.NewReader(content) }

// meet tells whether an entry is a disk that no layer above hides, and keeps in mind
// what the entry hides.
func (a *archive) meet(entry *tar.Header) (isDisk bool, err error) {
	dir, base := path.Split(strings.TrimPrefix(path.Clean("/"+entry.Name), "/"))
	name, isWhiteout := strings.CutPrefix(base, whiteout)
	switch {
	case dir == "" && (base == opaque || name == diskFolder && (isWhiteout || entry.Typeflag != tar.TypeDir)):
		a.hide("")
		return false, nil
	case dir != diskFolder+"/":
		return false, nil
	case base == opaque:
		name = ""
	}
	if a.met++; a.met > maxEntries {
		return false, fmt.Errorf("there are more than %d entries in /%s of the image: it must hold one disk", maxEntries, diskFolder)
	}
	if len(base) > maxName {
		return false, fmt.Errorf("a name in /%s of the image has %d bytes: it may have %d", diskFolder, len(base), maxName)
	}
	a.hide(name)
	shown := !isWhiteout && !a.isHidden("") && !a.isHidden(name)
	return shown && entry.Typeflag == tar.TypeReg && !strings.HasPrefix(base, "."), nil
}

func (a *archive) hide(name string) {
	if _, is := a.hidden[name]; !is {
		a.hidden[name] = a.depth
	}
}

// isHidden tells whether a layer above has hidden a name.
func (a *archive) isHidden(name string) bool {
	by, is := a.hidden[name]
	return is && by < a.depth
}
