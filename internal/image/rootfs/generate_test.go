// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"archive/tar"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
)

// generator makes layers at random, of which Docker refuses none.
type generator struct {
	random *rand.Rand
	layer  *archive
	// kinds are the kinds of the entries of the layer, by their paths, and files those that are regular.
	kinds map[string]kind
	files []string
}

type kind int

const (
	kindFile kind = iota
	kindFolder
	kindSymlink
	kindLink
	kindRemoved
	kindOpaque
	kindCapability
	kinds
)

// generateLayers returns some layers, in which few names are used for everything, so that each changes what those below
// have.
func generateLayers(t *testing.T, random *rand.Rand) (layers [][]byte) {
	t.Helper()
	for range 2 + random.IntN(4) {
		g := generator{random: random, layer: newArchive(t), kinds: map[string]kind{}}
		for range 5 + random.IntN(30) {
			g.addEntry(g.pickPath(), kind(random.IntN(int(kinds))))
		}
		layers = append(layers, g.layer.bytes())
	}
	return layers
}

func (g *generator) pickPath() string {
	names := []string{"a", "b", "c", "d"}
	text := ""
	for range 1 + g.random.IntN(3) {
		text = path.Join(text, names[g.random.IntN(len(names))])
	}
	return text
}

// addEntry adds an entry, unless Docker would refuse it.
func (g *generator) addEntry(name string, k kind) {
	old, isUsed := g.kinds[name]
	isFolder := k == kindFolder || k == kindOpaque
	switch {
	case !g.hasFolders(name), !isFolder && g.isAbove(name), k == kindLink && len(g.files) == 0:
		return
	case isUsed && (old != kindRemoved || k == kindRemoved || isFolder):
		return
	}
	g.addToLayer(name, k)
	if g.kinds[name] = k; isFolder {
		g.kinds[name] = kindFolder
	}
}

func (g *generator) addToLayer(name string, k kind) {
	switch k {
	case kindFile:
		g.layer.file(name, strings.Repeat(name, g.random.IntN(3)))
		g.files = append(g.files, name)
	case kindFolder:
		g.layer.add(tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: int64(g.random.IntN(0o1777)), Uid: g.random.IntN(3)}, "")
	case kindSymlink:
		g.layer.symlink(name, []string{"/a", "../b", "/a/b/c", "none", "/c/d"}[g.random.IntN(5)])
	case kindLink:
		g.layer.link(name, g.files[g.random.IntN(len(g.files))])
	case kindRemoved:
		folder, base := path.Split(name)
		g.layer.file(folder+".wh."+base, "")
	case kindOpaque:
		g.layer.folder(name+"/").file(name+"/.wh..wh..opq", "")
	default:
		g.layer.add(tar.Header{Name: name, Mode: 0o755, Format: tar.FormatPAX, PAXRecords: map[string]string{
			"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		}}, name)
	}
}

// hasFolders reports whether all above a path are folders, or are not in the layer.
func (g *generator) hasFolders(name string) bool {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if k, isUsed := g.kinds[above]; isUsed && k != kindFolder {
			return false
		}
	}
	return true
}

// isAbove reports whether the layer has anything below a path.
func (g *generator) isAbove(name string) bool {
	for other := range g.kinds {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}
