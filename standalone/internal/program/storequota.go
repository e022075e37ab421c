// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/machine/proc"
)

// Bounds of the store's quota. The smallest quota is enough for the objects of an empty API. With
// the largest quota, etcd can still rewrite its file before clients time out.
const (
	minStoreQuota     = 32 << 20
	maxStoreQuota     = 8 << 30
	defaultQuotaFrom  = 64 << 20
	defaultQuotaTo    = 1 << 30
	defaultMemoryPart = 32
)

// StoreQuota returns the largest size of all objects of the API, in bytes.
func (o *UpOptions) StoreQuota() (int64, error) {
	if o.storeQuota == "" {
		host, err := proc.ReadStats("/proc/meminfo")
		return defaultStoreQuota(host["MemTotal"]), err
	}
	q, err := resource.ParseQuantity(o.storeQuota)
	if err != nil || q.Value() < minStoreQuota || q.Value() > maxStoreQuota {
		return 0, fmt.Errorf("--store-quota is %q: it must be a quantity from 32Mi to 8Gi; empty means a 32nd of the host's memory, from 64Mi to 1Gi", o.storeQuota)
	}
	return q.Value(), nil
}

// defaultStoreQuota returns the default quota for a host with memory bytes. Most of the memory should be
// left for machines: by measurement, a full store takes up to seven times its size in this process.
func defaultStoreQuota(memory int64) int64 {
	return min(max(memory/defaultMemoryPart, defaultQuotaFrom), defaultQuotaTo)
}
