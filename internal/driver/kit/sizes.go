// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// FormatBytes formats a size as in a spec: 40000000000 as 40G and 42949672960 as 40Gi.
func FormatBytes(bytes int64) string {
	format := resource.DecimalSI
	if (bytes%1000 != 0 && bytes%1024 == 0) || bytes%(1<<30) == 0 {
		format = resource.BinarySI
	}
	return resource.NewQuantity(bytes, format).String()
}

// FormatMegabytes formats a measured size, which need not be exact.
func FormatMegabytes(bytes int64) string { return fmt.Sprintf("%dM", bytes/1e6) }
