// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/hack/guest/blocks"
	"cloudnative.tw/drover/test/assert"
)

// createWriter creates a guest on storage that all nodes reach. The guest constantly writes blocks
// that show what it has synced: see package blocks.
func (w *podWorld) createWriter(t *testing.T, name string) *guest {
	t.Helper()
	addSharedVolume(t, sharedClass, name)
	g := w.createGuest(t, name, func(spec *api.VirtualMachineSpec) {
		spec.StorageClassName = new(sharedClass)
		spec.Resource[api.ResourceRootDisk] = *resource.NewQuantity(blocks.SmallSize, resource.BinarySI)
		spec.Image.Kernel.Cmdline += " blocks=vda"
	})
	g.disk = filepath.Join(shared.Dir, "volume-"+name, "root", "disk")
	assert.Eventually(t, g.name+" writes blocks", func(t testing.TB) error {
		if g.noteRounds(t); g.rounds == 0 {
			return fmt.Errorf("no blocks are on %s", g.disk)
		}
		return nil
	})
	return g
}

// noteRounds records how many rounds the guest has synced so far. Later boots must find all of them.
func (g *guest) noteRounds(t testing.TB) {
	t.Helper()
	if g.disk == "" {
		return
	}
	disk, err := os.Open(g.disk)
	assert.NoError(t, err)
	defer func() { _ = disk.Close() }()
	for area := range blocks.AreasOf(1, 0) {
		for slot := range uint64(blocks.Slots) {
			if b, ok := readBlock(t, disk, blocks.Place{Area: area, Count: slot}); ok {
				g.rounds = max(g.rounds, b.Synced[0])
			}
		}
	}
}

func readBlock(t testing.TB, disk io.ReaderAt, at blocks.Place) (blocks.Block, bool) {
	t.Helper()
	data := make([]byte, blocks.Size)
	assert.NoError(t, assert.ErrorOf(disk.ReadAt(data, at.Offset())))
	return blocks.Decode(data)
}

// checkRounds checks that a guest has found, after a boot, all rounds that it had synced before.
func (g *guest) checkRounds(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if g.disk == "" {
		return
	}
	var found uint64
	assert.Eventually(t, g.name+" has read its disk", func(t testing.TB) error {
		log, err := shared.PodLog(t.Context(), pod.Namespace, pod.Name)
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(log, "drover linux guest found")
		_, err = fmt.Sscanf(rest, "%d rounds", &found)
		return err
	})
	assert.True(t, found >= g.rounds, "the guest has found %d rounds of blocks, and had synced %d", found, g.rounds)
	g.rounds = found
}

// checkBlocks checks that the disk of a guest that is off has all blocks of synced rounds that must be
// there.
func (g *guest) checkBlocks(t *testing.T) {
	t.Helper()
	g.noteRounds(t)
	disk, err := os.Open(g.disk)
	assert.NoError(t, err)
	defer func() { _ = disk.Close() }()
	for _, place := range blocks.Required(g.rounds, 0) {
		if b, ok := readBlock(t, disk, place); !ok || b.Count != place.Count || int(b.Area) != place.Area {
			t.Errorf("of %d rounds, round %d is not in area %d any more, but %+v, whole: %t", g.rounds, place.Count, place.Area, b, ok)
		}
	}
	t.Logf("the guest has synced %d rounds of blocks", g.rounds)
}
