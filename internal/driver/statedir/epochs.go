// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cloudnative.tw/drover/internal/crashpoint"
)

// maxEpochs bounds how many epochs are kept for a cluster.
const maxEpochs = 100

// Admit returns ErrFenced if a newer leader of the cluster has acted. The caller holds the
// lock of the server to change. Epoch 0 belongs to no leader and is not compared.
//
// Admit first records the epoch and then checks for a higher one. So a new leader need
// not wait for an old one that is suspended: the old leader can at most finish the one
// change that it was admitted to, and the server is locked until then.
func (d *Dir) Admit(cluster string, epoch uint64) error {
	if epoch == 0 {
		return nil
	}
	dir := d.Path(epochsDir, url.PathEscape(cluster))
	epochs, err := readEpochs(dir)
	if err != nil {
		return d.Explain(err)
	}
	if !slices.Contains(epochs, epoch) && CompareEpochs(epoch, highestEpoch(epochs)) == nil {
		if epochs, err = recordEpoch(dir, epoch); err != nil {
			return d.Explain(err)
		}
	}
	return CompareEpochs(epoch, highestEpoch(epochs))
}

// highestEpoch returns the last of the sorted epochs, or 0 if there is none.
func highestEpoch(epochs []uint64) uint64 {
	if len(epochs) == 0 {
		return 0
	}
	return epochs[len(epochs)-1]
}

// readEpochs returns the recorded epochs in order.
func readEpochs(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var epochs []uint64
	for _, entry := range entries {
		if n, err := strconv.ParseUint(entry.Name(), 10, 64); err == nil {
			epochs = append(epochs, n)
		}
	}
	slices.Sort(epochs)
	return epochs, nil
}

// recordEpoch records an epoch, removes the lowest ones if there are too many, and
// returns the rest. Readers only need the highest epoch, which is never removed.
func recordEpoch(dir string, epoch uint64) ([]uint64, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	point := crashpoint.Begin("record epoch", epochPath(dir, epoch))
	f, err := os.OpenFile(epochPath(dir, epoch), os.O_CREATE|os.O_WRONLY, 0o600)
	point.End()
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	epochs, err := readEpochs(dir)
	if err != nil {
		return nil, err
	}
	for len(epochs) > maxEpochs {
		_ = os.Remove(epochPath(dir, epochs[0]))
		epochs = epochs[1:]
	}
	return epochs, nil
}

func epochPath(dir string, epoch uint64) string {
	return filepath.Join(dir, strconv.FormatUint(epoch, 10))
}
