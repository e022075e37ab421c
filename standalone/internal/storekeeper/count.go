// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storekeeper

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"math"

	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/encoding/protowire"

	"cloudnative.tw/drover/standalone/internal/storequota"
)

// pageSize is how many revisions are read in one transaction of the database. A longer transaction
// would block writes that enlarge the file.
const pageSize = 10_000

// tally is the result of a count of the store.
type tally struct {
	byNamespace map[string]int64
	live        map[uint64]revision // keyed by the hash of the key
	names       map[string]string   // the names of namespaces, so that each string is kept only once
	history     int64               // bytes of revisions that later revisions have replaced
	seed        maphash.Seed
}

// revision is the newest revision of a key.
type revision struct {
	namespace string
	size      int64
}

// countStore reads the keys and sizes of all revisions. It does not decode the values, so that its
// cost depends on the number of objects and not on their size.
func (k *Keeper) countStore(ctx context.Context) (*tally, error) {
	last := k.Server.KV().Rev()
	backend := k.Server.Backend()
	backend.ForceCommit() // uncommitted revisions would be read out of order
	t := &tally{byNamespace: map[string]int64{}, live: map[uint64]revision{}, names: map[string]string{}, seed: maphash.MakeSeed()}
	begin, end := mvcc.NewRevBytes(), mvcc.NewRevBytes()
	begin = mvcc.RevToBytes(mvcc.Revision{}, begin)
	end = mvcc.RevToBytes(mvcc.Revision{Main: last, Sub: math.MaxInt64}, end)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		tx := backend.ConcurrentReadTx()
		tx.RLock()
		keys, values := tx.UnsafeRange(schema.Key, begin, end, pageSize)
		for i := range keys {
			if err := t.addRevision(keys[i], values[i]); err != nil {
				tx.RUnlock()
				return nil, err
			}
		}
		var next mvcc.Revision
		if len(keys) > 0 {
			next = mvcc.BytesToRev(keys[len(keys)-1][:len(begin)])
			next.Sub++
		}
		tx.RUnlock()
		if len(keys) < pageSize {
			return t, nil
		}
		begin = mvcc.RevToBytes(next, begin)
	}
}

// objectBytes returns the size of all objects.
func (t *tally) objectBytes() (sum int64) {
	for _, size := range t.byNamespace {
		sum += size
	}
	return sum
}

// addRevision adds a revision, which replaces the previous revision of its key.
func (t *tally) addRevision(rev, value []byte) error {
	key, err := keyOf(value)
	if err != nil {
		return err
	}
	id := maphash.Bytes(t.seed, key)
	if old, ok := t.live[id]; ok {
		t.byNamespace[old.namespace] -= old.size
		t.history += old.size
		delete(t.live, id)
	}
	if mvcc.IsTombstone(rev) {
		return nil
	}
	r := revision{namespace: t.namespaceOf(key), size: int64(len(rev)+len(value)) + storequota.ObjectOverhead}
	t.live[id] = r
	t.byNamespace[r.namespace] += r.size
	return nil
}

// keyOf returns the key of a stored mvccpb.KeyValue. The key is the first field of the message.
func keyOf(value []byte) ([]byte, error) {
	number, kind, n := protowire.ConsumeTag(value)
	if n > 0 && number == 1 && kind == protowire.BytesType {
		if key, length := protowire.ConsumeBytes(value[n:]); length > 0 {
			return key, nil
		}
	}
	return nil, errors.New("a revision in etcd's database lacks a key")
}

// namespaceOf returns the namespace of an object that kube-apiserver has stored, or "" if the object
// is cluster-scoped. The key of an object in a namespace is /registry/RESOURCE/NAMESPACE/NAME.
// RESOURCE is services/specs for services, and GROUP/RESOURCE for custom resources, whose groups
// always contain a dot.
func (t *tally) namespaceOf(key []byte) string {
	rest, ok := bytes.CutPrefix(key, []byte("/registry/"))
	if !ok {
		return ""
	}
	first, rest, _ := bytes.Cut(rest, []byte("/"))
	if bytes.IndexByte(first, '.') >= 0 || string(first) == "services" {
		_, rest, _ = bytes.Cut(rest, []byte("/"))
	}
	namespace, _, ok := bytes.Cut(rest, []byte("/"))
	if !ok {
		return ""
	}
	name, ok := t.names[string(namespace)]
	if !ok {
		name = string(namespace)
		t.names[name] = name
	}
	return name
}
