// CUDA's vector types with their alignment, and make_*.
#ifndef SIMULATED_VECTORS_H
#define SIMULATED_VECTORS_H

#define SIMULATED_VECTOR(scalar, name, align2, align4)                                             \
    struct name##1                                                                                 \
    {                                                                                              \
        scalar x;                                                                                  \
    };                                                                                             \
    struct alignas(align2) name##2                                                                 \
    {                                                                                              \
        scalar x, y;                                                                               \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        scalar x, y, z;                                                                            \
    };                                                                                             \
    struct alignas(align4) name##4                                                                 \
    {                                                                                              \
        scalar x, y, z, w;                                                                         \
    };                                                                                             \
    static inline name##1 make_##name##1(scalar x)                                                 \
    {                                                                                              \
        return name##1 {x};                                                                        \
    }                                                                                              \
    static inline name##2 make_##name##2(scalar x, scalar y)                                       \
    {                                                                                              \
        return name##2 {x, y};                                                                     \
    }                                                                                              \
    static inline name##3 make_##name##3(scalar x, scalar y, scalar z)                             \
    {                                                                                              \
        return name##3 {x, y, z};                                                                  \
    }                                                                                              \
    static inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w)                   \
    {                                                                                              \
        return name##4 {x, y, z, w};                                                               \
    }

SIMULATED_VECTOR(signed char, char, 2, 4)
SIMULATED_VECTOR(unsigned char, uchar, 2, 4)
SIMULATED_VECTOR(short, short, 4, 8)
SIMULATED_VECTOR(unsigned short, ushort, 4, 8)
SIMULATED_VECTOR(int, int, 8, 16)
SIMULATED_VECTOR(unsigned, uint, 8, 16)
SIMULATED_VECTOR(float, float, 8, 16)
SIMULATED_VECTOR(long long, longlong, 16, 16)
SIMULATED_VECTOR(unsigned long long, ulonglong, 16, 16)
SIMULATED_VECTOR(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_count = 1, unsigned y_count = 1, unsigned z_count = 1)
        : x(x_count), y(y_count), z(z_count)
    {
    }
    constexpr dim3(uint3 from) : x(from.x), y(from.y), z(from.z)
    {
    }
    constexpr operator uint3() const
    {
        return uint3{x, y, z};
    }
};

#endif
