// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"encoding/json"
	"maps"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ObjectOverhead is added to the size of each object, for the memory that etcd and the caches of
// kube-apiserver need in addition to the content.
const ObjectOverhead = 1 << 10

// measurer measures the sizes of objects as they are stored.
type measurer struct {
	kind      schema.GroupVersionKind
	convertor runtime.ObjectConvertor
}

// sizeOf returns the size of an object. It leaves out the fields that change with every write, so that
// an update that only changes such fields does not count as growth.
func (m measurer) sizeOf(object runtime.Object) int64 {
	if object == nil {
		return 0
	}
	if custom, ok := object.(*unstructured.Unstructured); ok {
		return ObjectOverhead + sizeOfCustom(custom)
	}
	versioned, err := m.convertor.ConvertToVersion(object, m.kind.GroupVersion())
	if err != nil || versioned == object {
		return ObjectOverhead + sizeOfJSON(object)
	}
	if accessor, err := meta.Accessor(versioned); err == nil {
		accessor.SetResourceVersion("")
		accessor.SetGeneration(0)
	}
	if lease, ok := versioned.(*coordinationv1.Lease); ok {
		lease.Spec.AcquireTime, lease.Spec.RenewTime, lease.Spec.LeaseTransitions = nil, nil, nil
	}
	if message, ok := versioned.(interface{ Size() int }); ok {
		return ObjectOverhead + int64(message.Size())
	}
	return ObjectOverhead + sizeOfJSON(versioned)
}

func sizeOfCustom(object *unstructured.Unstructured) int64 {
	content := maps.Clone(object.Object)
	if metadata, ok := content["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		delete(metadata, "resourceVersion")
		delete(metadata, "generation")
		content["metadata"] = metadata
	}
	return sizeOfJSON(content)
}

// sizeOfJSON returns the length of a value as JSON. For a value that cannot be encoded it returns the
// largest size of a request.
func sizeOfJSON(value any) int64 {
	const largest = 3 << 20
	var n counter
	if err := json.NewEncoder(&n).Encode(value); err != nil {
		return largest
	}
	return int64(n)
}

// counter counts the bytes that are written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
