// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

const (
	clusterBits = 16
	clusterSize = 1 << clusterBits
	// bytesPerL2Table is how many bytes of a disk one entry of the L1 table covers.
	bytesPerL2Table = clusterSize / 8 * clusterSize
	// maxNewSize bounds a new disk, so that one refcount block covers its metadata.
	maxNewSize = 1 << 50
	// extensionFormat is the header extension that names the format of the backing file.
	extensionFormat = 0xe2792aca
	maxBackingName  = 1023
)

// Backing is the backing file of a new disk: unwritten clusters show its content.
type Backing struct {
	Path, Format string
}

// CreateQcow2 makes a disk of the given size in a file that must not exist. It replaces
// qemu-img, which a host with QEMU may lack.
func CreateQcow2(path string, size int64, backing *Backing) error {
	if size <= 0 || size > maxNewSize {
		return fmt.Errorf("the size of a new disk is %d bytes: it must be more than 0 and at most %d", size, int64(maxNewSize))
	}
	content, length, err := newQcow2(WholeSectors(size), backing)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the caller's choice
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Truncate(length), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path)
		return err
	}
	return nil
}

// newQcow2 returns the metadata of a disk without data: the header, the refcount table and a
// refcount block. length includes the L1 table, which has only zeros and need not be written.
func newQcow2(size int64, backing *Backing) (content []byte, length int64, err error) {
	l1 := (size + bytesPerL2Table - 1) / bytesPerL2Table
	l1Clusters := (l1*8 + clusterSize - 1) / clusterSize
	const refcountTable, refcountBlock, l1Table = 1, 2, 3
	used := l1Table + l1Clusters

	content = make([]byte, l1Table*clusterSize)
	head, err := newHeader(header{
		Size: uint64(size), L1Size: uint32(l1), L1TableOffset: l1Table * clusterSize, //nolint:gosec // at most maxNewSize
		RefcountOffset: refcountTable * clusterSize, RefcountClusters: 1,
	}, backing)
	if err != nil {
		return nil, 0, err
	}
	copy(content, head)
	binary.BigEndian.PutUint64(content[refcountTable*clusterSize:], refcountBlock*clusterSize)
	for n := range used {
		binary.BigEndian.PutUint16(content[refcountBlock*clusterSize+2*n:], 1)
	}
	return content, used * clusterSize, nil
}

func newHeader(h header, backing *Backing) ([]byte, error) {
	copy(h.Magic[:], magic)
	h.Version, h.ClusterBits, h.RefcountOrder = 3, clusterBits, 4
	h.HeaderLength = uint32(binary.Size(h)) //nolint:gosec // 112
	var extensions bytes.Buffer
	if backing != nil {
		if len(backing.Path) > maxBackingName {
			return nil, fmt.Errorf("the path of the backing image has %d bytes, and may have at most %d", len(backing.Path), maxBackingName)
		}
		writeExtension(&extensions, extensionFormat, backing.Format)
	}
	extensions.Write(make([]byte, 8)) // the end of extensions
	if backing != nil {
		h.BackingFileOffset = uint64(h.HeaderLength) + uint64(extensions.Len()) //nolint:gosec // small
		h.BackingFileSize = uint32(len(backing.Path))                           //nolint:gosec // checked above
		extensions.WriteString(backing.Path)
	}
	var head bytes.Buffer
	err := binary.Write(&head, binary.BigEndian, h)
	return append(head.Bytes(), extensions.Bytes()...), err
}

// writeExtension writes a header extension, padded to 8 bytes.
func writeExtension(b *bytes.Buffer, kind uint32, value string) {
	var fixed [8]byte
	binary.BigEndian.PutUint32(fixed[:], kind)
	binary.BigEndian.PutUint32(fixed[4:], uint32(len(value))) //nolint:gosec // a format's name
	b.Write(fixed[:])
	b.WriteString(value)
	b.Write(make([]byte, (8-len(value)%8)%8))
}
